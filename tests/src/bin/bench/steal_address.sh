# The reference of `bench takeover --bed ec2`: what people run on EC2 in place of an agent, as a notify script of
# keepalived's or Pacemaker's awsvip does it. Once the broker has missed three checks in a row, one a second, it has EC2
# assign the broker's address to this host's interface, puts it on the link, and becomes Kafka. It fences nobody.
#
# PYTHON ENDPOINT INTERFACE ADDRESS PREFIX PORT KAFKA...
set -eu
python=$1 endpoint=$2 interface=$3 address=$4 prefix=$5 port=$6
shift 6

missed=0
while [ "$missed" -lt 3 ]; do
    sleep 1 &
    if timeout 1 bash -c "exec 3<>/dev/tcp/$address/$port" 2>/dev/null; then missed=0; else missed=$((missed + 1)); fi
    wait
done
echo "$(date +%T.%N) $address is dead"
"$python" - "$endpoint" "$interface" "$address" <<'PYTHON'
import sys
import boto3
endpoint, interface, address = sys.argv[1:]
ec2 = boto3.client("ec2", region_name="eu-central-1", endpoint_url=endpoint)
ec2.assign_private_ip_addresses(NetworkInterfaceId=interface, PrivateIpAddresses=[address], AllowReassignment=True)
PYTHON
ip addr add "$address/$prefix" dev eth0
echo "$(date +%T.%N) $address is here"
exec "$@"
