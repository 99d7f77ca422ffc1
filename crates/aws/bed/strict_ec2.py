#!/usr/bin/env python3
"""An EC2 and an FSx for tests: moto's wire, and rules of its own that are as strict as EC2's.

moto reads requests and writes answers by Amazon's own description of the API. Each rule and all state are here, because
moto's EC2 is too kind: two interfaces keep one address there, and a stopped instance is stopped at once. moto's FSx knows no
storage virtual machines; what is asked and told of them here is held against Amazon's description of the API.

Every access key has a world of its own, which a test lays by `PUT /world/KEY` and reads by `GET /world/KEY`:

    subnets     id -> vpc, cidr
    interfaces  id -> subnet, mac, primary, secondary [...], instance, tags {...}, checks (of the destination)
    tables      id -> vpc, routes {network: interface}, tags {...}, subnets [...] whose hosts send by it
    instances   id -> state, tags {...}, interface, checks {system, instance}, events [...], class, recovery
    systems     id -> kind (ONTAP or another), management (the name of its endpoint)
    svms        id -> system, name, lifecycle, management (the name of its endpoint; none while it is made), tags {...}
    faults      [{action, times, kind, ...}], see `Server`
    deny        [action, ...] that the key may not do
    policy      of IAM, for the key: what it does not allow is denied
    remap       seconds until what Describe tells follows a change of addresses or routes
    stop        seconds that an instance is `stopping`
    orderly     seconds that it takes longer without `Force`
    stale       seconds for which Describe tells the states before the last change
    page        the most that one answer lists
    region      that the metadata of an instance tells, at /metadata/KEY, beside the ids of interfaces
    bed         whether hosts follow it: an instance has stopped or started once the bed says so
    effect      seconds until packets follow a change of addresses or routes
    log         [{action, params, answer}], filled in here

`POST /world/KEY` changes a part of it: subnets, interfaces, instances, tables, systems and svms by id, numbers, and

    faults      more of them, after those that are there
    heal        no faults any more
    assign      address -> interface, as somebody else's call has it
    done        instance -> the state that its host has come to

`GET /world/KEY/state` leaves the log out, and tells hosts what to follow: `wanted` (instance -> state), and `network`, by
which packets go:

    addresses   address -> interface
    tables      table -> address -> interface
    open        the interfaces that take and send what is not theirs

It listens on the address that it is given, or on loopback, prints its port, and ends with its standard input.
"""

import copy
import fnmatch
import io
import ipaddress
import json
import os
import re
import socket
import sys
import threading
import time
import urllib.parse

import botocore.session
from botocore.validate import ParamValidator
from moto.core.exceptions import JsonRESTError
from moto.core.responses import ActionResult
from moto.ec2.exceptions import DryRunClientError, EC2ClientError
from moto.ec2.responses import EC2Response
from moto.fsx.responses import FSxResponse
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
MOST_ADDRESSES = 15
KNOBS = ("remap", "stop", "orderly", "stale", "page", "effect")
LOCK = threading.RLock()
WORLDS = {}


class Refused(EC2ClientError):
    """An answer with this code."""

    def __init__(self, code, message):
        super().__init__(code, message)
        self.code = code


class World:
    """The state behind one access key."""

    def __init__(self, laid):
        self.subnets = laid.get("subnets", {})
        self.interfaces = laid.get("interfaces", {})
        self.instances = laid.get("instances", {})
        self.tables = laid.get("tables", {})
        self.systems = laid.get("systems", {})
        self.svms = laid.get("svms", {})
        self.faults = laid.get("faults", [])
        self.deny = laid.get("deny", [])
        self.policy = laid.get("policy")
        self.knobs = {name: laid.get(name, 0) for name in KNOBS}
        self.bed = laid.get("bed", False)
        self.region = laid.get("region", "eu-central-1")
        self.log = []
        self.wanted = self.carried = self.settled()
        self.carried_at = 0.0
        self.shown = None  # what Describe tells until then: (time, interfaces, instances, tables)

    def told(self):
        """Interfaces and instances as Describe tells them now."""
        for instance in self.instances.values():
            due, then = instance.get("due", (None, None))
            if due is None or time.monotonic() < due:
                continue
            if self.bed and instance.get("done") != then:
                instance["wanted"] = then
                continue
            instance["state"] = then
            for name in ("due", "wanted", "done"):
                instance.pop(name, None)
        if self.shown and time.monotonic() < self.shown[0]:
            return self.shown[1], self.shown[2]
        return self.interfaces, self.instances

    def settled(self):
        """Where packets go once all that was changed has its effect."""
        to = lambda routes: {net.removesuffix("/32"): id for net, id in routes.items() if net.endswith("/32")}
        return {
            "addresses": {address: id for id, nic in self.interfaces.items() for address in addresses(nic)},
            "tables": {id: to(table["routes"]) for id, table in self.tables.items()},
        }

    def network(self):
        """Where packets go now. What is new is there at once, and so is a check that is switched."""
        now = self.settled()
        if now != self.wanted:
            self.wanted, self.carried_at = now, time.monotonic() + self.knobs["effect"]
        if time.monotonic() >= self.carried_at:
            self.carried = now
        then = self.carried
        return {
            "addresses": now["addresses"] | then["addresses"],
            "tables": {id: routes | then["tables"].get(id, {}) for id, routes in now["tables"].items()},
            "open": [id for id, nic in self.interfaces.items() if not nic.get("checks", True)],
        }

    def change(self, told):
        """Carries out what a test asks for."""
        for name in ("subnets", "interfaces", "instances", "tables", "systems", "svms"):
            for id, more in told.get(name, {}).items():
                getattr(self, name).setdefault(id, {}).update(more)
        self.knobs |= {name: told[name] for name in KNOBS if name in told}
        self.faults = ([] if told.get("heal") else self.faults) + told.get("faults", [])
        for address, to in told.get("assign", {}).items():
            steal(self, {"address": address, "to": to})
        for id, state in told.get("done", {}).items():
            self.instances[id]["done"] = state

    def lag(self, seconds):
        """For so long Describe goes on to tell what it tells now."""
        if seconds:
            interfaces, instances = self.told()
            now = copy.deepcopy((interfaces, instances, self.shown_tables()))
            self.shown = (time.monotonic() + seconds, *now)

    def shown_tables(self):
        """Route tables as Describe tells them now."""
        return self.shown[3] if self.shown and time.monotonic() < self.shown[0] else self.tables

    def fault(self, action):
        """The fault that this call meets, if any."""
        for fault in self.faults:
            if fault["action"] in (action, "*") and fault.get("times", 1) > 0:
                fault["times"] = fault.get("times", 1) - 1
                return fault
        return None


def world_of(authorization):
    key = re.search(r"Credential=([^/]+)/", authorization or "")
    return WORLDS.get(key.group(1)) if key else None


class Actions:
    """What replaces moto's EC2. `self` is moto's reader of one request."""

    def begin(self, action, of=None, ids=(), has_dry_run=False):
        """`of`, `ids`: the kind of thing and the things that a policy can allow the action for; without, for all alone."""
        world = world_of(self.headers.get("Authorization"))
        if world is None:
            raise Refused("AuthFailure", "AWS was not able to validate the provided access credentials")
        if action in world.deny or not all(allows(world.policy, f"ec2:{action}", *one) for one in resources(world, of, ids)):
            raise Refused("UnauthorizedOperation", "You are not authorized to perform this operation.")
        if has_dry_run and self._get_param("DryRun", False):
            raise DryRunClientError()
        return world

    def describe_network_interfaces(self):
        world = Actions.begin(self, "DescribeNetworkInterfaces")
        interfaces, instances = world.told()
        found = named(interfaces, self._get_param("NetworkInterfaceIds", []), "InvalidNetworkInterfaceID.NotFound")
        keys = {
            "vpc-id": lambda nic: [world.subnets[nic["subnet"]]["vpc"]],
            "addresses.private-ip-address": addresses,
        }
        found = filtered(found, self._get_param("Filters", []), keys)
        page, token = paged(self, world, [interface(world, instances, id, nic) for id, nic in found])
        return ActionResult({"NetworkInterfaces": page, "NextToken": token})

    def describe_subnets(self):
        world = Actions.begin(self, "DescribeSubnets")
        found = named(world.subnets, self._get_param("SubnetIds", []), "InvalidSubnetID.NotFound")
        subnets = [{"SubnetId": id, "VpcId": subnet["vpc"], "CidrBlock": subnet["cidr"]} for id, subnet in found]
        return ActionResult({"Subnets": subnets})

    def assign_private_ip_addresses(self):
        to = self._get_param("NetworkInterfaceId")
        world = Actions.begin(self, "AssignPrivateIpAddresses", "network-interface", [to])
        wanted = self._get_param("PrivateIpAddresses", [])
        nic = world.interfaces.get(to)
        if nic is None:
            raise Refused("InvalidNetworkInterfaceID.NotFound", f"The networkInterface ID '{to}' does not exist")
        network = ipaddress.ip_network(world.subnets[nic["subnet"]]["cidr"])
        peers = {id: other for id, other in world.interfaces.items() if other["subnet"] == nic["subnet"]}
        for address in map(ipaddress.ip_address, wanted):
            if address not in network or address in [network[n] for n in (0, 1, 2, 3, -1)]:
                raise Refused("InvalidParameterValue", "Address does not fall within the subnet's address range")
            for id, other in peers.items():
                if id != to and str(address) == other["primary"]:
                    raise Refused("InvalidParameterValue", f"{address} is the primary address of another interface")
                if id != to and str(address) in other["secondary"] and not self._get_param("AllowReassignment", False):
                    raise Refused("InvalidParameterValue", f"[{address}] assigned, but move is not allowed.")
        if len({*addresses(nic), *wanted}) > MOST_ADDRESSES:
            raise Refused("PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.")
        world.lag(world.knobs["remap"])
        for other in peers.values():
            other["secondary"] = [address for address in other["secondary"] if address not in wanted]
        nic["secondary"] += [address for address in wanted if address != nic["primary"]]
        assigned = [{"PrivateIpAddress": address} for address in wanted]
        return ActionResult({"NetworkInterfaceId": to, "AssignedPrivateIpAddresses": assigned})

    def describe_route_tables(self):
        world = Actions.begin(self, "DescribeRouteTables")
        tables = world.shown_tables()
        found = named(tables, self._get_param("RouteTableIds", []), "InvalidRouteTableID.NotFound")
        found = filtered(found, self._get_param("Filters", []), {"vpc-id": lambda table: [table["vpc"]]})
        page, token = paged(self, world, [route_table(world, id, table) for id, table in found])
        return ActionResult({"RouteTables": page, "NextToken": token})

    def replace_route(self):
        routes, to, interface = Actions.ordered(self, "ReplaceRoute")
        if to not in routes:
            raise Refused("InvalidParameterValue", f"There is no route defined for '{to}' in the route table.")
        routes[to] = interface
        return ActionResult({})

    def create_route(self):
        routes, to, interface = Actions.ordered(self, "CreateRoute")
        if to in routes:
            raise Refused("RouteAlreadyExists", f"The route identified by {to} already exists.")
        routes[to] = interface
        return ActionResult({"Return": True})

    def ordered(self, action):
        """The routes that an order is to change, the network and the interface, once it has been found to be allowed."""
        id, to, target = (self._get_param(n) for n in ("RouteTableId", "DestinationCidrBlock", "NetworkInterfaceId"))
        world = Actions.begin(self, action, "route-table", [id], has_dry_run=True)
        if id not in world.tables:
            raise Refused("InvalidRouteTableID.NotFound", f"The routeTable ID '{id}' does not exist")
        if target not in world.interfaces:
            raise Refused("InvalidNetworkInterfaceID.NotFound", f"The networkInterface ID '{target}' does not exist")
        subnet, vpc = world.subnets[world.interfaces[target]["subnet"]], world.tables[id]["vpc"]
        if subnet["vpc"] != vpc:
            raise Refused("InvalidParameterValue", f"route table {id} and interface {target} belong to different networks")
        if any(ipaddress.ip_network(to).subnet_of(ipaddress.ip_network(net)) for net in networks(world, vpc)):
            raise Refused("InvalidParameterValue", f"{to} is equal to or more specific than the VPC's CIDR block")
        world.lag(world.knobs["remap"])
        return world.tables[id]["routes"], to, target

    def describe_instances(self):
        world = Actions.begin(self, "DescribeInstances")
        interfaces, instances = world.told()
        found = named(instances, self._get_param("InstanceIds", []), "InvalidInstanceID.NotFound")
        filters = self._get_param("Filters", [])
        keys = {f["Name"]: tag_of(f["Name"]) for f in filters if f["Name"].startswith("tag:")}
        found = filtered(found, filters, keys)
        page, token = paged(self, world, [instance(interfaces, id, of) for id, of in found])
        return ActionResult({"Reservations": [{"Instances": [of]} for of in page], "NextToken": token})

    def describe_instance_status(self):
        world = Actions.begin(self, "DescribeInstanceStatus")
        _, instances = world.told()
        found = named(instances, self._get_param("InstanceIds", []), "InvalidInstanceID.NotFound")
        everything = self._get_param("IncludeAllInstances", False)
        statuses = [status(id, of) for id, of in found if everything or of["state"] == "running"]
        page, token = paged(self, world, statuses)
        return ActionResult({"InstanceStatuses": page, "NextToken": token})

    def stop_instances(self):
        world = Actions.begin(self, "StopInstances", "instance", self._get_param("InstanceIds", []), has_dry_run=True)
        return ActionResult({"StoppingInstances": change(self, world, "stopping", "stopped")})

    def start_instances(self):
        world = Actions.begin(self, "StartInstances", "instance", self._get_param("InstanceIds", []), has_dry_run=True)
        return ActionResult({"StartingInstances": change(self, world, "pending", "running")})


class Fsx:
    """What replaces moto's FSx. `self` is moto's reader of one request."""

    def describe_storage_virtual_machines(self):
        world, asked = Fsx.begin(self, "DescribeStorageVirtualMachines")
        ids, filters = asked.get("StorageVirtualMachineIds", []), asked.get("Filters", [])
        for id in ids:
            if id not in world.svms:
                raise JsonRESTError("StorageVirtualMachineNotFound", f"StorageVirtualMachine '{id}' does not exist.")
        found = [(id, svm) for id, svm in world.svms.items() if not ids or id in ids]
        found = [(id, svm) for id, svm in found if all(svm["system"] in wanted["Values"] for wanted in filters)]
        start = int(asked.get("NextToken") or 0)
        end = start + (world.knobs["page"] or 1000)
        told = {"StorageVirtualMachines": [svm_of(id, svm) for id, svm in found[start:end]]}
        return Fsx.told("DescribeStorageVirtualMachines", told | ({"NextToken": str(end)} if end < len(found) else {}))

    def describe_file_systems(self):
        world, asked = Fsx.begin(self, "DescribeFileSystems")
        ids = asked.get("FileSystemIds", [])
        for id in ids:
            if id not in world.systems:
                raise JsonRESTError("FileSystemNotFound", f"File system '{id}' does not exist.")
        systems = [system_of(id, system) for id, system in world.systems.items() if not ids or id in ids]
        return Fsx.told("DescribeFileSystems", {"FileSystems": systems})

    def begin(self, action):
        """What is asked. What Amazon's description does not have is refused."""
        world = world_of(self.headers.get("Authorization"))
        if world is None:
            raise JsonRESTError("UnrecognizedClientException", "The security token included in the request is invalid.")
        if action in world.deny or not allows(world.policy, f"fsx:{action}", "*", {}):
            raise JsonRESTError("AccessDeniedException", f"User is not authorized to perform: fsx:{action}")
        asked = json.loads(self.body)
        wrong = ParamValidator().validate(asked, FSX.operation_model(action).input_shape)
        if wrong.has_errors():
            raise JsonRESTError("BadRequest", wrong.generate_report())
        return world, asked

    def told(action, told):
        """An answer, which must be as Amazon describes it."""
        wrong = ParamValidator().validate(told, FSX.operation_model(action).output_shape)
        if wrong.has_errors():
            raise ValueError(wrong.generate_report())
        return json.dumps(told)


def svm_of(id, svm):
    told = {"StorageVirtualMachineId": id, "FileSystemId": svm["system"], "Name": svm["name"], "Subtype": "DEFAULT"}
    told |= {"Lifecycle": svm.get("lifecycle", "CREATED"), "RootVolumeSecurityStyle": "UNIX"}
    if svm.get("tags"):
        told["Tags"] = [{"Key": key, "Value": value} for key, value in svm["tags"].items()]
    if svm.get("management"):
        endpoint = {"DNSName": svm["management"], "IpAddresses": ["10.20.0.50"]}
        told["Endpoints"] = {name: endpoint for name in ("Iscsi", "Management", "Nfs")}
    return told


def system_of(id, system):
    told = {"FileSystemId": id, "FileSystemType": system["kind"], "Lifecycle": "AVAILABLE"}
    if system["kind"] == "ONTAP":
        endpoints = {name: {"DNSName": system["management"]} for name in ("Intercluster", "Management")}
        told["OntapConfiguration"] = {"DeploymentType": "SINGLE_AZ_1", "Endpoints": endpoints}
    return told


FSX = botocore.session.get_session().get_service_model("fsx")
OURS = {
    "".join(word.capitalize() for word in name.split("_"))
    for service in (Actions, Fsx)
    for name in vars(service)
    if not name.startswith("_")
}


def resources(world, of, ids):
    """The names and tags by which a policy knows things."""
    if of is None:
        return [("*", {})]
    things = {"instance": world.instances, "network-interface": world.interfaces, "route-table": world.tables}[of]
    name = f"arn:aws:ec2:eu-central-1:123456789012:{of}/"
    return [(name + id, things.get(id, {}).get("tags", {})) for id in ids]


def allows(policy, action, name, tags):
    """Whether a policy allows an action for one thing. What is not known here is refused, never ignored."""
    if policy is None:
        return True
    listed = lambda value: value if isinstance(value, list) else [value]
    for statement in policy["Statement"]:
        if statement["Effect"] != "Allow" or statement.keys() - {"Sid", "Effect", "Action", "Resource", "Condition"}:
            raise ValueError(f"a statement that is not known here: {statement}")
        conditions = statement.get("Condition", {})
        if conditions.keys() - {"StringEquals"}:
            raise ValueError(f"a condition that is not known here: {conditions}")
        tag = lambda key: tags.get(key.removeprefix("aws:ResourceTag/")) if key.startswith("aws:ResourceTag/") else None
        if (
            any(fnmatch.fnmatchcase(action, wanted) for wanted in listed(statement["Action"]))
            and any(fnmatch.fnmatchcase(name, wanted) for wanted in listed(statement["Resource"]))
            and all(tag(key) in listed(value) for key, value in conditions.get("StringEquals", {}).items())
        ):
            return True
    return False


def change(request, world, meanwhile, then):
    """Has instances stop or start."""
    ids = request._get_param("InstanceIds", [])
    world.told()
    for id, of in named(world.instances, ids, "InvalidInstanceID.NotFound"):
        if of["state"] in ("terminated", "shutting-down") or (then == "running" and of["state"] == "stopping"):
            raise Refused("IncorrectInstanceState", f"The instance '{id}' is not in a state from which it can be {then}.")
        if of.get("class") == "protected" and then == "stopped":
            raise Refused("OperationNotPermitted", f"The instance '{id}' may not be stopped. Modify its 'disableApiStop'.")
        if of.get("class") == "ephemeral":
            raise Refused("UnsupportedOperation", f"The instance '{id}' does not have an 'ebs' root device type.")
    world.lag(world.knobs["stale"])
    orderly = then == "stopped" and not request._get_param("Force", False)
    takes = world.knobs["stop"] + (world.knobs["orderly"] if orderly else 0)
    changes = []
    for id in ids:
        of = world.instances[id]
        before = of["state"]
        if before not in (meanwhile, then):
            of["state"] = meanwhile
            of.pop("wanted", None)
            of.pop("done", None)
            of["due"] = (time.monotonic() + takes, then)
            of["reason"] = f"User initiated ({time.strftime('%Y-%m-%d %H:%M:%S GMT', time.gmtime())})"
        states = {"CurrentState": state(of["state"]), "PreviousState": state(before)}
        changes.append({"InstanceId": id, **states})
    return changes


def state(name):
    return {"Code": CODES[name], "Name": name}


def addresses(nic):
    return [nic["primary"], *nic["secondary"]]


def named(things, ids, missing):
    """Those with these ids, or all."""
    for id in ids:
        if missing.startswith("InvalidInstanceID") and not re.fullmatch(r"i-([0-9a-f]{8}|[0-9a-f]{17})", id):
            raise Refused("InvalidInstanceID.Malformed", f'Invalid id: "{id}"')
        if id not in things:
            raise Refused(missing, f"The ID '{id}' does not exist")
    return [(id, thing) for id, thing in things.items() if not ids or id in ids]


def tag_of(filter):
    return lambda instance: [instance["tags"].get(filter.removeprefix("tag:"))]


def filtered(found, filters, keys):
    """Those which every filter lets through. One that is not known is refused, never ignored."""
    for wanted in filters:
        if wanted["Name"] not in keys:
            raise Refused("InvalidParameterValue", f"The filter '{wanted['Name']}' is invalid")
        key = keys[wanted["Name"]]
        found = [(id, thing) for id, thing in found if set(key(thing)) & set(wanted["Values"])]
    return found


def paged(request, world, items):
    start = int(request._get_param("NextToken") or 0)
    end = start + (world.knobs["page"] or 1000)
    return items[start:end], str(end) if end < len(items) else None


def interface(world, instances, id, nic):
    subnet = world.subnets[nic["subnet"]]
    listed = [{"PrivateIpAddress": a, "Primary": a == nic["primary"]} for a in addresses(nic)]
    told = {"NetworkInterfaceId": id, "SubnetId": nic["subnet"], "VpcId": subnet["vpc"], "MacAddress": nic["mac"]}
    told |= {"PrivateIpAddress": nic["primary"], "PrivateIpAddresses": listed, "Status": "available"}
    told["SourceDestCheck"] = nic.get("checks", True)
    if nic.get("instance"):
        attachment = {"AttachmentId": f"eni-attach-{id[4:]}", "InstanceId": nic["instance"], "Status": "attached"}
        told |= {"Attachment": attachment, "Status": "in-use"}
    return told


def networks(world, vpc):
    """The networks of a VPC: those of its subnets."""
    return [subnet["cidr"] for subnet in world.subnets.values() if subnet["vpc"] == vpc]


def route_table(world, id, table):
    local = [{"DestinationCidrBlock": net, "GatewayId": "local", "State": "active"} for net in networks(world, table["vpc"])]
    routes = [route(world, to, target) for to, target in table["routes"].items()]
    return {"RouteTableId": id, "VpcId": table["vpc"], "Routes": local + routes}


def route(world, to, target):
    """An interface whose instance does not run is a black hole."""
    runs = world.instances.get(world.interfaces[target].get("instance"), {}).get("state") == "running"
    return {"DestinationCidrBlock": to, "NetworkInterfaceId": target, "State": "active" if runs else "blackhole"}


def instance(interfaces, id, of):
    told = {"InstanceId": id, "State": state(of["state"]), "StateTransitionReason": of.get("reason", "")}
    told["MaintenanceOptions"] = {"AutoRecovery": of.get("recovery", "default")}
    told["Tags"] = [{"Key": key, "Value": value} for key, value in of["tags"].items()]
    nic = interfaces.get(of["interface"])
    if nic and of["state"] != "terminated":  # a terminated one has no interface any more
        told["PrivateIpAddress"] = nic["primary"]
    return told


def status(id, of):
    runs = of["state"] == "running"
    checks = of.get("checks", {}) if runs else {}
    summary = lambda name: {"Status": checks.get(name, "ok") if runs else "not-applicable"}
    told = {"InstanceId": id, "InstanceState": state(of["state"])}
    return told | {"SystemStatus": summary("system"), "InstanceStatus": summary("instance"), "Events": of.get("events", [])}


class Server:
    """Faults and the log around moto's server, and the pages by which a test lays a world.

    A fault has a `kind`: `refuse` (with `code` and `status`, before the act), `lost` (the reply, after the act),
    `delay` (of `seconds`, before the act), or `steal` (after the act `address` goes to interface `to`; with a `table`, by
    a route of it).
    """

    def __init__(self):
        self.moto = DomainDispatcherApplication(create_backend_app)

    def __call__(self, env, start):
        path = env.get("PATH_INFO", "")
        if path.startswith("/metadata/"):
            return self.metadata(env, start, *path.removeprefix("/metadata/").split("/", 1))
        if path.startswith("/world/"):
            return self.page(env, start, path.removeprefix("/world/"))
        body = env["wsgi.input"].read(int(env.get("CONTENT_LENGTH") or 0))
        env["wsgi.input"] = io.BytesIO(body)
        params = dict(urllib.parse.parse_qsl(body.decode()))
        # EC2's calls are forms, FSx's are JSON.
        action = params.get("Action") or env.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
        world = world_of(env.get("HTTP_AUTHORIZATION"))
        with LOCK:
            fault = world.fault(action) if world else None
        if world and action not in OURS and not allows(world.policy, f"ec2:{action}", "*", {}):
            fault = {"kind": "refuse", "code": "UnauthorizedOperation", "status": "403 Forbidden"}
        kind = fault["kind"] if fault else None
        if kind == "delay":
            time.sleep(fault["seconds"])
        if kind == "refuse":
            return self.answer(start, world, action, params, *refusal(fault, "HTTP_X_AMZ_TARGET" in env))
        answered = {}
        with LOCK:
            keep = lambda status, headers, *_: answered.update(status=status, headers=headers)
            content = b"".join(self.moto(env, keep))
            if kind == "steal":
                steal(world, fault)
        if kind == "lost":
            self.note(world, action, params, "lost")
            env["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionError("the reply is lost")
        return self.answer(start, world, action, params, answered["status"], answered["headers"], content)

    def metadata(self, env, start, key, path):
        """IMDSv2: nothing without a token."""
        token = f"token-of-{key}"
        if (env["REQUEST_METHOD"], path) == ("PUT", "latest/api/token"):
            content = token
        elif env.get("HTTP_X_AWS_EC2_METADATA_TOKEN") != token:
            start("401 Unauthorized", [])
            return [b""]
        else:
            world = WORLDS[key]
            told = {"placement/region": world.region}
            told |= {f"network/interfaces/macs/{nic['mac']}/interface-id": id for id, nic in world.interfaces.items()}
            content = told.get(path.removeprefix("latest/meta-data/"))
        if content is None:
            start("404 Not Found", [])
            return [b""]
        headers = [("Content-Length", str(len(content))), ("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")]
        start("200 OK", headers)
        return [content.encode()]

    def note(self, world, action, params, answer):
        if world:
            world.log.append({"action": action, "params": params, "answer": answer})

    def answer(self, start, world, action, params, status, headers, content):
        self.note(world, action, params, status.split()[0])
        start(status, headers)
        return [content]

    def page(self, env, start, path):
        key, _, part = path.partition("/")
        with LOCK:
            told = env["wsgi.input"].read(int(env.get("CONTENT_LENGTH") or 0))
            if env["REQUEST_METHOD"] == "PUT":
                WORLDS[key] = World(json.loads(told))
            world = WORLDS[key]
            if env["REQUEST_METHOD"] == "POST":
                world.change(json.loads(told))
            world.told()
            wanted = {id: of["wanted"] for id, of in world.instances.items() if "wanted" in of}
            told = {"wanted": wanted, "network": world.network()}
            told |= {"interfaces": world.interfaces, "instances": world.instances, "tables": world.tables}
            if part != "state":
                told["log"] = world.log
            content = json.dumps(told).encode()
        start("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(content)))])
        return [content]


def refusal(fault, as_json):
    code, status = fault["code"], fault.get("status", "400 Bad Request")
    if as_json:
        content = json.dumps({"__type": code, "message": "by the test"}).encode()
        return status, [("Content-Type", "application/x-amz-json-1.1"), ("Content-Length", str(len(content)))], content
    error = f"<Error><Code>{code}</Code><Message>by the test</Message></Error>"
    content = f"<Response><Errors>{error}</Errors><RequestID>test</RequestID></Response>".encode()
    return status, [("Content-Type", "text/xml"), ("Content-Length", str(len(content)))], content


def steal(world, fault):
    if "table" in fault:
        world.tables[fault["table"]]["routes"][fault["address"]] = fault["to"]
        return
    for nic in world.interfaces.values():
        nic["secondary"] = [address for address in nic["secondary"] if address != fault["address"]]
    world.interfaces[fault["to"]]["secondary"].append(fault["address"])


def main():
    for reader, actions in ((EC2Response, Actions), (FSxResponse, Fsx)):
        for name, method in vars(actions).items():
            if not name.startswith("_") and name not in ("begin", "ordered", "told"):
                setattr(reader, name, method)
    server = make_server(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1", 0, Server(), threaded=True)
    print(server.port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
