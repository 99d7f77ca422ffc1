terraform {
  required_version = ">= 1.8"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.10" # primary_network_interface
    }
  }
}

provider "aws" {
  region = var.region
}
