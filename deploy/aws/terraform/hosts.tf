data "aws_ami" "debian" {
  owners      = ["136693071363"] # Debian's own account, https://wiki.debian.org/Cloud/AmazonEC2Image
  most_recent = true
  filter {
    name   = "name"
    values = ["debian-12-amd64-*"]
  }
}

locals {
  # The link of an instance of this generation with Debian 12.
  link     = "ens5"
  prefix   = split("/", local.hosts_cidr)[1]
  endpoint = aws_fsx_ontap_storage_virtual_machine.kafka.endpoints[0]

  # A broker: its node id, the address that moves with it, its home and its volume, as `understudy ontap provision` names it.
  brokers = [for n in range(1, var.brokers + 1) : {
    id = n, address = cidrhost(local.hosts_cidr, 10 + n), home = "kafka-${n}", volume = "kafka${n}_1"
  }]
  # Every host that may run a broker, and the volumes that it may then write to.
  homes    = { for b in local.brokers : b.home => { address = cidrhost(local.hosts_cidr, 40 + b.id), brokers = [b] } }
  standbys = { for n in range(1, var.standbys + 1) : "standby-${n}" => { address = cidrhost(local.hosts_cidr, 30 + n), brokers = local.brokers } }
  hosts    = merge(local.homes, local.standbys)

  controllers = { for n in range(1, 4) : "controller-${n}" => { id = 100 + n, address = cidrhost(local.hosts_cidr, 20 + n) } }
  voters      = join(",", [for c in values(local.controllers) : "${c.id}@${c.address}:9093"])

  configurations = { for name, host in local.hosts : name => templatefile("${path.module}/templates/understudy.toml.tftpl", {
    mode = var.mode, region = var.region, heap = var.heap, link = local.link, prefix = local.prefix
    name = name, own = host, is_home = contains(keys(local.homes), name), peers = local.hosts
    # A home fences nobody but is let in again by its own fence; a standby fences every other host.
    fenced      = contains(keys(local.homes), name) ? { (name) = host } : { for n, h in local.hosts : n => h if n != name }
    brokers     = host.brokers
    bootstrap   = [for b in local.brokers : "${b.address}:9092"]
    controllers = [for c in values(local.controllers) : "${c.id}@${c.address}:9093"]
    svm         = aws_fsx_ontap_storage_virtual_machine.kafka.name
    svm_id      = aws_fsx_ontap_storage_virtual_machine.kafka.id
    nfs         = local.endpoint.nfs[0].dns_name
  }) }

  properties = { for name, host in local.hosts : name => templatefile("${path.module}/templates/broker.properties.tftpl", {
    voters = local.voters, broker = one(contains(keys(local.homes), name) ? host.brokers : [])
  }) }

  units = "${path.module}/../../systemd"
  # On every host with Kafka, whatever it is to do. The first line of a script that fails ends it.
  install_kafka = [
    "set -eu",
    # The session manager's agent, by which a person gets in if something below fails: Debian's image has none.
    "curl -fsSL 'https://s3.${var.region}.amazonaws.com/amazon-ssm-${var.region}/latest/debian_amd64/amazon-ssm-agent.deb' -o /root/ssm.deb",
    "dpkg --install /root/ssm.deb",
    "systemd-sysusers",
    "curl -fsSL '${var.kafka.url}' -o /root/kafka.tgz",
    "echo '${var.kafka.sha512}  /root/kafka.tgz' | sha512sum --check --strict",
    "mkdir -p /opt/kafka && tar -xzf /root/kafka.tgz -C /opt/kafka --strip-components=1",
    "install -d -o kafka -g kafka /var/lib/kafka /opt/kafka/logs",
  ]
  sysusers = { path = "/etc/sysusers.d/kafka.conf", content = file("${local.units}/sysusers.d/kafka.conf") }
  nfs      = "vers=4.1,proto=tcp,hard,nconnect=16,noatime,_netdev,nofail"
  packages = ["curl", "openjdk-17-jre-headless"]

  host_data = { for name, host in local.hosts : name => {
    packages = concat(local.packages, ["nfs-common", "openssl", "awscli"])
    runcmd   = [["sh", "/root/first-boot"]]
    write_files = concat([
      { path = "/root/first-boot", content = join("\n", concat(local.install_kafka, [
        "if [ -d /etc/netplan ]; then install -m 0600 /root/50-cloud-init.yaml /etc/netplan/ && netplan apply; fi",
        "curl -fsSL '${var.understudy.url}' -o /root/understudy",
        "echo '${var.understudy.sha256}  /root/understudy' | sha256sum --check --strict",
        "install -m 0755 /root/understudy /usr/bin/understudy",
        "(umask 077; aws secretsmanager get-secret-value --region '${var.region}' --secret-id '${aws_secretsmanager_secret.vsadmin.arn}' --query SecretString --output text >/etc/understudy/ontap.password)",
        # The certificate that the SVM has now is the one that is trusted from here on.
        "pin=$(openssl s_client -connect '${local.endpoint.management[0].dns_name}:443' </dev/null | openssl x509 -noout -fingerprint -sha256 | cut -d= -f2)",
        "test -n \"$pin\"",
        "sed -i \"s/@PIN@/$pin/\" /etc/understudy/understudy.toml",
        "mkdir -p /mnt/understudy",
        "echo '${local.endpoint.nfs[0].dns_name}:/ledger /mnt/understudy nfs4 ${local.nfs} 0 0' >>/etc/fstab",
        "mount /mnt/understudy",
        "systemctl daemon-reload",
        "",
      ])) },
      local.sysusers,
      # networkd drops addresses that it did not set when it is restarted, as by an upgrade: a broker's is one of them.
      { path = "/etc/systemd/network/10-netplan-${local.link}.network.d/understudy.conf", content = "[Network]\nKeepConfiguration=static\n" },
      # A host that is made anew may find a broker's address on its interface: the link has its own alone, by DHCP.
      { path = "/etc/cloud/cloud.cfg.d/99-understudy.cfg", content = "network: { config: disabled }\n" },
      { path = "/root/50-cloud-init.yaml", permissions = "0600", content = "network: { version: 2, ethernets: { ${local.link}: { dhcp4: true } } }\n" },
      { path = "/etc/modprobe.d/nfs.conf", content = "options nfs nfs4_unique_id=${var.name}-${name} max_session_slots=180\n" },
      { path = "/etc/understudy/understudy.toml", permissions = "0600", content = local.configurations[name] },
      { path = "/etc/systemd/system/kafka@.service", content = file("${local.units}/kafka@.service") },
      { path = "/etc/systemd/system/understudy.service", content = file("${local.units}/understudy.service") },
      { path = "/etc/systemd/system/understudy-warm.service", content = file("${local.units}/understudy-warm.service") },
      { path = "/etc/systemd/system/kafka@.service.d/site.conf", content = "[Unit]\nRequiresMountsFor=/mnt/understudy\n" },
      ], contains(keys(local.homes), name) ? [
      { path = "/etc/kafka/server.properties", content = local.properties[name] },
      # What a takeover gives Kafka by [broker_host.environment].
      { path = "/etc/kafka/kafka.env", content = "KAFKA_HEAP_OPTS=-Xms${var.heap} -Xmx${var.heap}\n" },
      { path = "/etc/systemd/system/kafka@${host.brokers[0].id}.service.d/home.conf", content = join("\n", [
        "[Unit]", "RequiresMountsFor=/mnt/kafka/broker${host.brokers[0].id}", "[Service]",
        "ExecStartPre=+ip addr replace ${host.brokers[0].address}/${local.prefix} dev ${local.link}", ""
      ]) },
      { path = "/usr/local/sbin/kafka-begin", permissions = "0755", content = templatefile("${path.module}/templates/kafka-begin.tftpl", {
        broker = host.brokers[0], nfs = local.endpoint.nfs[0].dns_name, options = local.nfs, cluster_id = var.cluster_id
        region = var.region, interface = aws_network_interface.host[name].id
      }) },
      ] : [
      { path = "/etc/understudy/server.properties", content = local.properties[name] },
      { path = "/etc/systemd/system/understudy.service.d/nfs.conf", content = file("${local.units}/understudy.service.d/nfs.conf") },
    ])
  } }

  controller_data = { for name, c in local.controllers : name => {
    packages = local.packages
    runcmd   = [["sh", "/root/first-boot"]]
    write_files = [
      { path = "/root/first-boot", content = join("\n", concat(local.install_kafka, [
        "runuser -u kafka -- /opt/kafka/bin/kafka-storage.sh format --ignore-formatted --cluster-id '${var.cluster_id}' --config /etc/kafka/server.properties",
        "systemctl daemon-reload",
        "systemctl enable --now kafka",
        "",
      ])) },
      local.sysusers,
      { path = "/etc/kafka/server.properties", content = templatefile("${path.module}/templates/controller.properties.tftpl", { id = c.id, address = c.address, voters = local.voters }) },
      { path = "/etc/systemd/system/kafka.service", content = file("${path.module}/templates/controller.service") },
    ]
  } }
}

# The first address is the host's own. A broker's comes with `kafka-begin`: at the first boot cloud-init would take it
# for the host's. From then on addresses come and go by EC2 and Understudy.
resource "aws_network_interface" "host" {
  for_each                = local.hosts
  subnet_id               = aws_subnet.hosts.id
  security_groups         = [aws_security_group.kafka.id]
  private_ip_list_enabled = true
  private_ip_list         = [each.value.address]
  tags                    = merge(local.tags, { Name = "${var.name}-${each.key}" })
  lifecycle {
    ignore_changes = [private_ip_list]
  }
}

resource "aws_instance" "host" {
  for_each             = local.hosts
  ami                  = data.aws_ami.debian.id
  instance_type        = var.host_type
  iam_instance_profile = aws_iam_instance_profile.host.name
  user_data_base64     = base64gzip("#cloud-config\n${yamlencode(local.host_data[each.key])}")
  primary_network_interface {
    network_interface_id = aws_network_interface.host[each.key].id
  }
  root_block_device {
    volume_size = 20
    volume_type = "gp3"
    encrypted   = true
  }
  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }
  # A host whose hardware fails is taken over, and does not come back by itself.
  maintenance_options {
    auto_recovery = "disabled"
  }
  # The tag `Name` is what makes an instance a host to `ec2_stop`: no other one may have it.
  tags = merge(local.tags, { Name = each.key })
  lifecycle {
    ignore_changes = [ami, user_data_base64]
  }
  depends_on = [aws_route.out, aws_route_table_association.hosts, aws_fsx_ontap_volume.ledger, aws_secretsmanager_secret_version.vsadmin,
  aws_iam_role_policy.password]
}

resource "aws_instance" "controller" {
  for_each               = local.controllers
  ami                    = data.aws_ami.debian.id
  instance_type          = var.controller_type
  iam_instance_profile   = aws_iam_instance_profile.controller.name
  subnet_id              = aws_subnet.hosts.id
  private_ip             = each.value.address
  vpc_security_group_ids = [aws_security_group.kafka.id]
  user_data_base64       = base64gzip("#cloud-config\n${yamlencode(local.controller_data[each.key])}")
  root_block_device {
    volume_size = 20
    volume_type = "gp3"
    encrypted   = true
  }
  metadata_options {
    http_tokens = "required"
  }
  tags = { Name = "${var.name}-${each.key}" }
  lifecycle {
    ignore_changes = [ami, user_data_base64]
  }
  depends_on = [aws_route.out, aws_route_table_association.hosts]
}
