# One zone: a secondary address does not leave its subnet, and an FSx file system in one zone goes with it.
locals {
  # Brokers, standbys, controllers and FSx. A broker's own address stays with its host; the other moves.
  hosts_cidr = cidrsubnet(var.vpc_cidr, 8, 0)
  # `understudy=kafka` is what the policy of the role goes by.
  tags = { understudy = "kafka" }
}

resource "aws_vpc" "kafka" {
  cidr_block           = var.vpc_cidr
  enable_dns_hostnames = true
  tags                 = { Name = var.name }
}

resource "aws_subnet" "hosts" {
  vpc_id            = aws_vpc.kafka.id
  availability_zone = var.zone
  cidr_block        = local.hosts_cidr
  tags              = { Name = "${var.name}-hosts" }
}

# The addresses of hosts and brokers, .0 to .63, are nobody else's. FSx takes one above.
resource "aws_ec2_subnet_cidr_reservation" "fixed" {
  subnet_id        = aws_subnet.hosts.id
  cidr_block       = cidrsubnet(local.hosts_cidr, 2, 0)
  reservation_type = "explicit"
}

resource "aws_subnet" "nat" {
  vpc_id            = aws_vpc.kafka.id
  availability_zone = var.zone
  cidr_block        = cidrsubnet(var.vpc_cidr, 8, 255)
  tags              = { Name = "${var.name}-nat" }
}

resource "aws_internet_gateway" "kafka" {
  vpc_id = aws_vpc.kafka.id
  tags   = { Name = var.name }
}

resource "aws_eip" "nat" {
  domain = "vpc"
  tags   = { Name = "${var.name}-nat" }
}

# Hosts have no public address: EC2's API, packages and the session manager are reached through this.
resource "aws_nat_gateway" "kafka" {
  allocation_id = aws_eip.nat.id
  subnet_id     = aws_subnet.nat.id
  tags          = { Name = var.name }
  depends_on    = [aws_internet_gateway.kafka]
}

resource "aws_route_table" "nat" {
  vpc_id = aws_vpc.kafka.id
  tags   = { Name = "${var.name}-nat" }
}

resource "aws_route" "internet" {
  route_table_id         = aws_route_table.nat.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.kafka.id
}

resource "aws_route_table_association" "nat" {
  subnet_id      = aws_subnet.nat.id
  route_table_id = aws_route_table.nat.id
}

resource "aws_route_table" "hosts" {
  vpc_id = aws_vpc.kafka.id
  tags   = { Name = "${var.name}-hosts" }
}

resource "aws_route" "out" {
  route_table_id         = aws_route_table.hosts.id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.kafka.id
}

resource "aws_route_table_association" "hosts" {
  subnet_id      = aws_subnet.hosts.id
  route_table_id = aws_route_table.hosts.id
}

# What hosts and storage say to each other. Clients of Kafka elsewhere in the VPC need a rule of their own.
resource "aws_security_group" "kafka" {
  name        = var.name
  description = "Kafka hosts and their storage"
  vpc_id      = aws_vpc.kafka.id
  tags        = { Name = var.name }
}

resource "aws_vpc_security_group_ingress_rule" "among" {
  security_group_id            = aws_security_group.kafka.id
  referenced_security_group_id = aws_security_group.kafka.id
  ip_protocol                  = "-1"
}

resource "aws_vpc_security_group_egress_rule" "out" {
  security_group_id = aws_security_group.kafka.id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
}
