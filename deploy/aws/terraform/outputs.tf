output "bootstrap" {
  description = "Where clients reach Kafka."
  value       = join(",", [for b in local.brokers : "${b.address}:9092"])
}

output "instances" {
  description = "The instance of each host, for `aws ssm start-session --target`."
  value       = { for name, host in merge(aws_instance.host, aws_instance.controller) : name => host.id }
}

output "provision" {
  description = "What makes the brokers' volumes and their export policies; to be run on a standby, with the password of fsxadmin in ./password."
  value = join(" ", concat([
    "understudy ontap provision --url https://${aws_fsx_ontap_file_system.kafka.endpoints[0].management[0].dns_name}",
    "--user fsxadmin --password-file $PWD/password --pin $PIN --svm ${aws_fsx_ontap_storage_virtual_machine.kafka.name} --aggregate aggr1",
    "--size ${floor(var.storage_gib * 7 / 10 / var.brokers)}GiB",
  ], [for b in local.brokers : "--broker ${b.id}=${local.homes[b.home].address}"]))
}

output "configurations" {
  description = "The configuration of each host's agent, as it is laid at the first boot; @PIN@ becomes the certificate's SHA-256 there."
  value       = local.configurations
}
