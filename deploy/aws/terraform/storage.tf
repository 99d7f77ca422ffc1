resource "aws_fsx_ontap_file_system" "kafka" {
  deployment_type     = "SINGLE_AZ_1"
  storage_capacity    = var.storage_gib
  throughput_capacity = var.storage_mbps
  preferred_subnet_id = aws_subnet.hosts.id
  subnet_ids          = [aws_subnet.hosts.id]
  security_group_ids  = [aws_security_group.kafka.id]
  fsx_admin_password  = var.fsx_admin_password
  # A backup keeps the segments that Kafka has deleted.
  automatic_backup_retention_days = 0
  tags                            = merge(local.tags, { Name = var.name })
  depends_on                      = [aws_ec2_subnet_cidr_reservation.fixed]
}

resource "aws_fsx_ontap_storage_virtual_machine" "kafka" {
  file_system_id             = aws_fsx_ontap_file_system.kafka.id
  name                       = "kafka"
  root_volume_security_style = "UNIX"
  svm_admin_password         = var.svm_admin_password
  tags                       = merge(local.tags, { Name = "${var.name}-kafka" })
}

# The ledger and nothing else: it outlives any broker, and every host reaches it.
#
# The brokers' volumes are not here. AWS's API has neither export policies nor preserve-unlink, and a volume without a
# policy of its own cannot be fenced: `understudy ontap provision` makes volume, policy, rule and junction (see the output
# `provision`).
resource "aws_fsx_ontap_volume" "ledger" {
  name                       = "ledger"
  storage_virtual_machine_id = aws_fsx_ontap_storage_virtual_machine.kafka.id
  junction_path              = "/ledger"
  security_style             = "UNIX"
  size_in_megabytes          = 10240
  snapshot_policy            = "none"
  storage_efficiency_enabled = true
  skip_final_backup          = true
  tiering_policy {
    name = "NONE"
  }
  tags = { Name = "${var.name}-ledger" }
}

# Hosts read the password of vsadmin from here, once, at their first boot.
resource "aws_secretsmanager_secret" "vsadmin" {
  name = "${var.name}/vsadmin"
  # Else the name is taken for 30 days after it was destroyed.
  recovery_window_in_days = 0
  tags                    = { Name = "${var.name}-vsadmin" }
}

resource "aws_secretsmanager_secret_version" "vsadmin" {
  secret_id     = aws_secretsmanager_secret.vsadmin.id
  secret_string = var.svm_admin_password
}
