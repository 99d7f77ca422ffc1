"""Does with the vendor's Python client (netapp-ontap) what operators do, and checks what came of it.

Usage: python_client.py URL USER PASSWORD, of a system whose contents may be changed: the fake, with its small world.
Ends with 1 at the first step that is not as expected.
"""

import sys
import urllib.parse

from netapp_ontap import NetAppRestError, config
from netapp_ontap.host_connection import HostConnection
from netapp_ontap.resources import (
    CLI,
    Aggregate,
    ClientLock,
    Cluster,
    ExportClient,
    ExportPolicy,
    ExportRule,
    IpInterface,
    Job,
    NfsClients,
    NfsService,
    Node,
    Snapshot,
    SnapmirrorRelationship,
    Svm,
    Volume,
    VolumeMetrics,
)

STEPS = []


def step(function):
    STEPS.append(function)
    return function


def expect(actual, wanted, what):
    if actual != wanted:
        raise AssertionError(f"{what} is {actual!r}, not {wanted!r}")


def refused(act, code):
    """`act` must be refused with this code of ONTAP's."""
    try:
        act()
    except NetAppRestError as error:
        answer = error.http_err_response.http_response.json()
        expect(str(answer["error"]["code"]), str(code), "the error code")
        return
    raise AssertionError(f"was accepted, and should have been refused with {code}")


class Seen:
    """What later steps need of earlier ones."""

    svm = None
    policy = None
    volume = None
    snapshot = None


@step
def cluster_has_a_version():
    cluster = Cluster()
    cluster.get()
    expect(cluster.version.generation, 9, "the generation")


@step
def nodes_are_an_ha_pair():
    nodes = list(Node.get_collection(fields="state,ha.partners"))
    expect(sorted(node.name for node in nodes), ["node-01", "node-02"], "the nodes' names")
    expect(nodes[0].ha.partners[0].name, nodes[1].name, "the partner")


@step
def aggregate_has_space():
    aggregate = Aggregate.find(name="aggr1", fields="space,state")
    expect(aggregate.state, "online", "the aggregate's state")
    assert aggregate.space.block_storage.available > 0


@step
def svm_is_found_by_name():
    Seen.svm = Svm.find(name="svm1")
    expect(Seen.svm.state, "running", "the SVM's state")


@step
def nfs_service_is_read():
    service = NfsService(**{"svm.uuid": Seen.svm.uuid})
    service.get()
    expect(service.protocol.v41_enabled, True, "v4.1")


@step
def nfs_service_takes_a_larger_transfer_size():
    service = NfsService(**{"svm.uuid": Seen.svm.uuid})
    service.transport = {"tcp_max_transfer_size": 262144}
    service.patch()
    service.get()
    expect(service.transport.tcp_max_transfer_size, 262144, "tcp_max_transfer_size")


@step
def nfs_service_refuses_a_lease_longer_than_grace():
    service = NfsService(**{"svm.uuid": Seen.svm.uuid})
    service.protocol = {"v4_lease_seconds": 60}
    refused(service.patch, 3276873)


@step
def export_policy_is_made():
    policy = ExportPolicy(name="kafka_policy", svm={"name": "svm1"})
    policy.post(hydrate=True)
    expect(policy.name, "kafka_policy", "the policy's name")
    assert isinstance(policy.id, int), f"the id is {policy.id!r}, not a number"
    Seen.policy = policy


@step
def rule_is_added():
    rule = ExportRule(Seen.policy.id)
    rule.clients = [{"match": "10.0.0.101"}]
    rule.protocols = ["nfs4"]
    rule.ro_rule = ["sys"]
    rule.rw_rule = ["sys"]
    rule.superuser = ["sys"]
    rule.post(hydrate=True)
    expect(rule.index, 1, "the index")


@step
def rules_are_listed():
    rules = list(ExportRule.get_collection(Seen.policy.id, fields="*"))
    expect([rule.clients[0].match for rule in rules], ["10.0.0.101"], "the clients")


@step
def rule_changes_its_owner_in_one_call():
    rule = ExportRule(Seen.policy.id, index=1)
    rule.get()
    rule.clients = [{"match": "10.0.0.102"}]
    rule.patch()
    again = ExportRule(Seen.policy.id, index=1)
    again.get()
    expect([client.match for client in again.clients], ["10.0.0.102"], "the clients")


@step
def rule_with_a_client_twice_is_refused():
    rule = ExportRule(Seen.policy.id, index=1)
    rule.get()
    rule.clients = [{"match": "10.0.0.103"}, {"match": "10.0.0.103"}]
    refused(rule.patch, 1704050)


@step
def client_is_added_listed_and_taken_away():
    ExportClient(Seen.policy.id, 1, match="10.0.0.0/24").post()
    clients = [client.match for client in ExportClient.get_collection(Seen.policy.id, 1)]
    expect(sorted(clients), ["10.0.0.0/24", "10.0.0.102"], "the clients")
    ExportClient(Seen.policy.id, 1, match="10.0.0.0/24").delete()
    clients = [client.match for client in ExportClient.get_collection(Seen.policy.id, 1)]
    expect(clients, ["10.0.0.102"], "the clients")


@step
def second_rule_comes_and_goes():
    rule = ExportRule(Seen.policy.id)
    rule.clients = [{"match": "10.0.0.110"}]
    rule.ro_rule = rule.rw_rule = ["sys"]
    rule.post(hydrate=True)
    expect(rule.index, 2, "the index")
    rule.delete()
    expect(len(list(ExportRule.get_collection(Seen.policy.id))), 1, "the number of rules")


@step
def volume_is_made_by_a_job():
    volume = Volume(name="kafka01", svm={"name": "svm1"}, aggregates=[{"name": "aggr1"}], size=107374182400)
    volume.nas = {"path": "/kafka01", "export_policy": {"name": "kafka_policy"}}
    volume.post(hydrate=True, poll=True)
    expect(volume.state, "online", "the volume's state")
    Seen.volume = volume


@step
def volume_is_found_with_its_junction():
    volume = Volume.find(name="kafka01", fields="nas.path,nas.export_policy.name,size")
    expect(volume.nas.path, "/kafka01", "the junction path")
    expect(volume.nas.export_policy.name, "kafka_policy", "the policy")


@step
def volume_grows():
    volume = Volume(uuid=Seen.volume.uuid)
    volume.size = 214748364800
    volume.patch(poll=True)
    volume.get(fields="size,space")
    expect(volume.size, 214748364800, "the size")
    expect(volume.space.size, 214748364800, "the size in space")


@step
def second_volume_of_the_name_is_refused():
    again = Volume(name="kafka01", svm={"name": "svm1"}, aggregates=[{"name": "aggr1"}], size=107374182400)
    refused(lambda: again.post(poll=True), 917526)


@step
def preserve_unlink_is_set_by_passthrough():
    answer = CLI().execute(
        "volume modify",
        vserver="svm1",
        volume="kafka01",
        body={"is-preserve-unlink-enabled": True},
        privilege_level="advanced",
    )
    expect(answer.http_response.json()["num_records"], 1, "num_records")
    answer = CLI().execute("volume show", vserver="svm1", volume="kafka01", fields="is-preserve-unlink-enabled")
    record = answer.http_response.json()["records"][0]
    expect(record["is_preserve_unlink_enabled"], True, "is_preserve_unlink_enabled")


@step
def connections_are_shown_by_passthrough():
    answer = CLI().execute("network connections active show", vserver="svm1", fields="remote-ip,service")
    remotes = [record["remote_ip"] for record in answer.http_response.json()["records"]]
    expect(remotes, ["10.0.0.101"], "the remote addresses")


@step
def snapshot_is_made_and_listed():
    snapshot = Snapshot(Seen.volume.uuid, name="before_takeover")
    snapshot.post(hydrate=True, poll=True)
    names = [snapshot.name for snapshot in Snapshot.get_collection(Seen.volume.uuid)]
    expect(names, ["before_takeover"], "the snapshots")
    Seen.snapshot = snapshot


@step
def clone_of_the_snapshot_is_made():
    clone = Volume(name="kafka01_clone", svm={"name": "svm1"})
    clone.clone = {
        "is_flexclone": True,
        "parent_volume": {"name": "kafka01"},
        "parent_snapshot": {"name": "before_takeover"},
    }
    clone.post(hydrate=True, poll=True)
    clone.get(fields="clone")
    expect(clone.clone.parent_volume.name, "kafka01", "the parent")
    clone.delete(poll=True)


@step
def snapshot_is_deleted():
    Seen.snapshot.delete(poll=True)
    expect(list(Snapshot.get_collection(Seen.volume.uuid)), [], "the snapshots")


@step
def metrics_have_samples():
    samples = list(VolumeMetrics.get_collection(Seen.volume.uuid, interval="1h", fields="*"))
    assert samples, "there are none"
    expect(samples[0].duration, "PT15S", "the duration")


@step
def locks_of_a_client_are_listed():
    locks = list(ClientLock.get_collection(client_address="10.0.0.101", fields="*"))
    expect({lock.volume.name for lock in locks}, {"kafka01"}, "the locked volumes")
    expect({lock.protocol for lock in locks}, {"nfsv4.1"}, "the protocols")


@step
def one_lock_is_broken():
    locks = list(ClientLock.get_collection(client_address="10.0.0.101"))
    locks[0].delete()
    refused(lambda: ClientLock(uuid=locks[0].uuid).get(), 4)


@step
def all_locks_of_a_client_are_broken():
    ClientLock.delete_collection(client_address="10.0.0.101", **{"volume.name": "kafka01"})
    expect(ClientLock.count_collection(client_address="10.0.0.101"), 0, "the number of locks")


@step
def connected_clients_are_listed():
    clients = list(NfsClients.get_collection(fields="*"))
    expect([client.client_ip for client in clients], ["10.0.0.101"], "the clients")


@step
def lif_moves_and_goes_home():
    lif = IpInterface.find(name="lif1", **{"svm.name": "svm1"})
    lif.location = {"node": {"name": "node-02"}}
    lif.patch()
    lif.get()
    expect((lif.location.node.name, lif.location.is_home), ("node-02", False), "where the LIF is")
    lif = IpInterface(uuid=lif.uuid)
    lif.location = {"is_home": True}
    lif.patch()
    lif.get()
    expect(lif.location.node.name, "node-01", "the node")


@step
def snapmirror_is_broken():
    relationship = next(iter(SnapmirrorRelationship.get_collection(fields="*")))
    expect(relationship.state, "snapmirrored", "the state")
    relationship = SnapmirrorRelationship(uuid=relationship.uuid)
    relationship.state = "broken_off"
    relationship.patch(poll=True)
    relationship.get()
    expect(relationship.state, "broken_off", "the state")


@step
def volume_is_unmounted_and_deleted():
    volume = Volume(uuid=Seen.volume.uuid)
    refused(lambda: volume.delete(poll=True), 917536)
    volume.nas = {"path": ""}
    volume.patch(poll=True)
    volume.delete(poll=True)
    expect(Volume.find(name="kafka01"), None, "the volume")


@step
def export_policy_is_deleted():
    Seen.policy.delete()
    expect(ExportPolicy.find(name="kafka_policy"), None, "the policy")


@step
def job_that_is_not_there_is_not_found():
    refused(lambda: Job(uuid="00000000-0000-0000-0000-000000000000").get(), 4)


def main():
    url, user, password = sys.argv[1:]
    address = urllib.parse.urlsplit(url)
    config.CONNECTION = HostConnection(
        address.hostname,
        username=user,
        password=password,
        port=address.port,
        scheme=address.scheme,
        verify=False,
        poll_timeout=30,
        poll_interval=1,
    )
    for number, function in enumerate(STEPS, 1):
        name = function.__name__.replace("_", " ")
        try:
            function()
        except Exception as error:
            sys.exit(f"python client: step {number} of {len(STEPS)}, {name}: {type(error).__name__}: {error}")
    print(f"python client: {len(STEPS)} steps passed")


if __name__ == "__main__":
    main()
