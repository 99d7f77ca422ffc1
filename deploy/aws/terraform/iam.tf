resource "aws_iam_role" "host" {
  name = "${var.name}-host"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ec2.amazonaws.com" }
    }]
  })
}

# What an agent may do, and no more: the file that tests enforce.
resource "aws_iam_role_policy" "standby" {
  name   = "understudy-standby"
  role   = aws_iam_role.host.id
  policy = file("${path.module}/../iam-standby.json")
}

resource "aws_iam_role_policy" "password" {
  name = "vsadmin"
  role = aws_iam_role.host.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = "secretsmanager:GetSecretValue"
      Resource = aws_secretsmanager_secret.vsadmin.arn
    }]
  })
}

# A shell on hosts without a public address: `aws ssm start-session`.
resource "aws_iam_role_policy_attachment" "shell" {
  role       = aws_iam_role.host.name
  policy_arn = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
}

resource "aws_iam_instance_profile" "host" {
  name = "${var.name}-host"
  role = aws_iam_role.host.name
}

# Controllers hold no right that agents have.
resource "aws_iam_role" "controller" {
  name               = "${var.name}-controller"
  assume_role_policy = aws_iam_role.host.assume_role_policy
}

resource "aws_iam_role_policy_attachment" "controller_shell" {
  role       = aws_iam_role.controller.name
  policy_arn = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
}

resource "aws_iam_instance_profile" "controller" {
  name = "${var.name}-controller"
  role = aws_iam_role.controller.name
}
