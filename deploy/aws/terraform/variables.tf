variable "region" {
  description = "The region of everything."
  type        = string
  validation {
    condition = alltrue([
      can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region)), !can(regex("^(cn|us-(gov|iso))", var.region))
    ])
    error_message = "Name a region, such as eu-central-1. China's and governments' have other ARNs than these policies."
  }
}

variable "zone" {
  description = "The availability zone of everything. It has to have FSx for ONTAP and `host_type`, and stays."
  type        = string
  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9][a-z]$", var.zone))
    error_message = "Name a zone of the region, such as eu-central-1a."
  }
}

variable "name" {
  description = "What the names of things begin with."
  type        = string
  default     = "understudy"
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,19}$", var.name))
    error_message = "Lower-case letters, digits and hyphens, 20 at most."
  }
}

variable "vpc_cidr" {
  description = "The network of the VPC. Its first /24 has the hosts, its last the NAT gateway."
  type        = string
  default     = "10.20.0.0/16"
  validation {
    condition     = can(cidrsubnet(var.vpc_cidr, 8, 0)) && try(tonumber(split("/", var.vpc_cidr)[1]), 0) == 16
    error_message = "Give a /16, such as 10.20.0.0/16."
  }
}

variable "brokers" {
  description = "How many brokers there are, each with a host of its own and an address that moves with it."
  type        = number
  default     = 3
  validation {
    condition     = var.brokers >= 3 && var.brokers <= 9 && floor(var.brokers) == var.brokers
    error_message = "3 to 9: this plan of addresses has no room for more."
  }
}

variable "standbys" {
  description = "How many hosts wait to take a broker over."
  type        = number
  default     = 1
  validation {
    condition     = var.standbys >= 1 && var.standbys <= 9 && floor(var.standbys) == var.standbys
    error_message = "1 to 9."
  }
}

variable "mode" {
  description = "What agents may do by themselves: observe, approve or auto. Begin with observe."
  type        = string
  default     = "observe"
  validation {
    condition     = contains(["observe", "approve", "auto"], var.mode)
    error_message = "observe, approve or auto."
  }
}

variable "host_type" {
  description = "The instance type of brokers and standbys: x86-64, with the link `ens5` (m8i has another)."
  type        = string
  default     = "m7i.large"
}

variable "controller_type" {
  description = "The instance type of the three controllers."
  type        = string
  default     = "t3.medium"
}

variable "heap" {
  description = "The heap of a broker's Java."
  type        = string
  default     = "4g"
  validation {
    condition     = can(regex("^[1-9][0-9]*[gm]$", var.heap))
    error_message = "Such as 4g."
  }
}

variable "cluster_id" {
  description = "The cluster's id, as `kafka-storage.sh random-uuid` makes one."
  type        = string
  validation {
    condition     = can(regex("^[A-Za-z0-9_-]{22}$", var.cluster_id))
    error_message = "22 characters, as `kafka-storage.sh random-uuid` prints them."
  }
}

variable "kafka" {
  description = "Where hosts get Kafka from, and the SHA-512 that the file must have."
  type        = object({ url = string, sha512 = string })
  validation {
    condition     = startswith(var.kafka.url, "https://") && can(regex("^[0-9a-f]{128}$", var.kafka.sha512))
    error_message = "An https:// address of kafka_VERSION.tgz, and its SHA-512 in 128 small hexadecimal digits."
  }
}

variable "understudy" {
  description = "Where hosts get the program from, and the SHA-256 that it must have."
  type        = object({ url = string, sha256 = string })
  validation {
    condition     = startswith(var.understudy.url, "https://") && can(regex("^[0-9a-f]{64}$", var.understudy.sha256))
    error_message = "An https:// address of the program, and its SHA-256 in 64 small hexadecimal digits."
  }
}

variable "storage_gib" {
  description = "What the file system has, in GiB of SSD."
  type        = number
  default     = 1024
  validation {
    condition     = var.storage_gib >= 1024 && var.storage_gib <= 196608
    error_message = "FSx has 1024 to 196608 GiB in one file system of one HA pair."
  }
}

variable "storage_mbps" {
  description = "The throughput of the file system, in MB/s."
  type        = number
  default     = 256
  validation {
    condition     = contains([128, 256, 512, 1024, 2048, 4096], var.storage_mbps)
    error_message = "128, 256, 512, 1024, 2048 or 4096."
  }
}

variable "fsx_admin_password" {
  description = "The password of fsxadmin, who makes the brokers' volumes. It is in Terraform's state."
  type        = string
  sensitive   = true
  validation {
    condition = alltrue([
      length(var.fsx_admin_password) >= 8, length(var.fsx_admin_password) <= 50,
      !can(regex("fsxadmin", var.fsx_admin_password)),
      can(regex("[A-Za-z]", var.fsx_admin_password)), can(regex("[0-9]", var.fsx_admin_password)),
    ])
    error_message = "8 to 50 characters, letters and digits among them, without fsxadmin."
  }
}

variable "svm_admin_password" {
  description = "The password of vsadmin, by which hosts fence and grant. It is in Terraform's state and in Secrets Manager."
  type        = string
  sensitive   = true
  validation {
    condition = alltrue([
      length(var.svm_admin_password) >= 8, length(var.svm_admin_password) <= 50,
      !can(regex("vsadmin", var.svm_admin_password)),
      can(regex("[A-Za-z]", var.svm_admin_password)), can(regex("[0-9]", var.svm_admin_password)),
    ])
    error_message = "8 to 50 characters, letters and digits among them, without vsadmin."
  }
}
