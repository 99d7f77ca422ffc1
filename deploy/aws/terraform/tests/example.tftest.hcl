# The whole configuration with a provider that only pretends: `tofu test` makes nothing and takes no credentials.
mock_provider "aws" {
  mock_resource "aws_fsx_ontap_storage_virtual_machine" {
    defaults = {
      id = "svm-0123456789abcdef0"
      endpoints = [{
        management = [{ dns_name = "svm-0123456789abcdef0.fs-0123456789abcdef0.fsx.eu-central-1.amazonaws.com", ip_addresses = [] }]
        nfs        = [{ dns_name = "svm-0123456789abcdef0.fs-0123456789abcdef0.fsx.eu-central-1.amazonaws.com", ip_addresses = [] }]
        iscsi      = []
        smb        = []
      }]
    }
  }
  mock_resource "aws_fsx_ontap_file_system" {
    defaults = {
      id = "fs-0123456789abcdef0"
      endpoints = [{
        management   = [{ dns_name = "management.fs-0123456789abcdef0.fsx.eu-central-1.amazonaws.com", ip_addresses = [] }]
        intercluster = []
      }]
    }
  }
}

variables {
  region             = "eu-central-1"
  zone               = "eu-central-1a"
  cluster_id         = "MkU3OEVBNTcwNTJENDM2Qk"
  kafka              = { url = "https://example.com/kafka.tgz", sha512 = join("", [for i in range(128) : "0"]) }
  understudy         = { url = "https://example.com/understudy", sha256 = join("", [for i in range(64) : "0"]) }
  fsx_admin_password = "an example of 2026"
  svm_admin_password = "an example of 2026"
}

run "example" {
  assert {
    condition     = length(aws_instance.host) == 4 && length(aws_instance.controller) == 3
    error_message = "three brokers, a standby and three controllers"
  }
  assert {
    condition     = jsondecode(aws_iam_role_policy.standby.policy) == jsondecode(file("../iam-standby.json"))
    error_message = "hosts have the policy that tests enforce"
  }
  # What the policy lets an agent act on has the tag, and nothing else has.
  assert {
    condition = alltrue(concat(
      [for name, host in aws_instance.host : host.tags == tomap({ understudy = "kafka", Name = name })],
      [for nic in aws_network_interface.host : nic.tags.understudy == "kafka"],
      [for other in aws_instance.controller : !contains(keys(other.tags), "understudy")],
    ))
    error_message = "hosts and their interfaces are tagged, controllers are not"
  }
  assert {
    condition     = alltrue([for host in aws_instance.host : host.iam_instance_profile == aws_iam_instance_profile.host.name])
    error_message = "hosts have their role"
  }
  # EC2 takes 16 KiB, before base64: so much of this text are 4/3 as many characters.
  assert {
    condition = alltrue([for i in concat(values(aws_instance.host), values(aws_instance.controller)) :
    length(i.user_data_base64) <= 16384 / 3 * 4])
    error_message = "user data is too long"
  }
  assert {
    condition = (aws_network_interface.host["kafka-2"].private_ip_list == tolist(["10.20.0.42"])
    && aws_network_interface.host["standby-1"].private_ip_list == tolist(["10.20.0.31"]))
    error_message = "a host begins with its own address alone"
  }
  # EC2's rule for it, which the provider does not know.
  assert {
    condition     = can(regex("^[a-zA-Z0-9 ._:/()#,@\\[\\]+=&;{}!$*-]{1,255}$", aws_security_group.kafka.description))
    error_message = "EC2 refuses the description of the security group"
  }
}

run "most" {
  variables {
    brokers  = 9
    standbys = 9
    mode     = "auto"
  }
  assert {
    condition     = length(distinct(flatten(values(aws_network_interface.host)[*].private_ip_list))) == 18
    error_message = "every address is somebody's alone"
  }
  assert {
    condition     = alltrue([for i in values(aws_instance.host) : length(i.user_data_base64) <= 16384 / 3 * 4])
    error_message = "user data is too long"
  }
}

run "bad_values_are_refused" {
  command = plan
  variables {
    region             = "Frankfurt"
    zone               = "eu-central-1"
    brokers            = 2
    standbys           = 0
    mode               = "act"
    vpc_cidr           = "10.20.0.0/20"
    cluster_id         = "short"
    kafka              = { url = "http://example.com/kafka.tgz", sha512 = "0" }
    understudy         = { url = "https://example.com/understudy", sha256 = "0" }
    storage_gib        = 100
    storage_mbps       = 100
    fsx_admin_password = "letters alone"
    svm_admin_password = "vsadmin of 2026"
    heap               = "4"
    name               = "Under Study"
  }
  expect_failures = [
    var.region, var.zone, var.brokers, var.standbys, var.mode, var.vpc_cidr, var.cluster_id, var.kafka, var.understudy,
    var.storage_gib, var.storage_mbps, var.fsx_admin_password, var.svm_admin_password, var.heap, var.name,
  ]
}
