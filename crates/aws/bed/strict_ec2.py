#!/usr/bin/env python3
"""An EC2 for tests: moto's wire, and rules of its own that are as strict as EC2's.

moto reads requests and writes answers by Amazon's own description of the API. Each rule and all state are here, because
moto's EC2 is too kind: two interfaces keep one address there, and a stopped instance is stopped at once.

Every access key has a world of its own, which a test lays by `PUT /world/KEY` and reads by `GET /world/KEY`:

    subnets     id -> vpc, cidr
    interfaces  id -> subnet, mac, primary, secondary [...], instance
    instances   id -> state, tags {...}, interface, checks {system, instance}, events [...], class
    faults      [{action, times, kind, ...}], see `Fault`
    deny        [action, ...] that the key may not do
    remap       seconds until what Describe tells follows a change of addresses
    stop        seconds that an instance is `stopping`
    stale       seconds for which Describe tells the states before the last change
    page        the most that one answer lists
    log         [{action, params, answer}], filled in here

It prints its port, and ends with its standard input.
"""

import copy
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

from moto.core.responses import ActionResult
from moto.ec2.exceptions import DryRunClientError, EC2ClientError
from moto.ec2.responses import EC2Response
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
MOST_ADDRESSES = 15
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
        self.faults = laid.get("faults", [])
        self.deny = laid.get("deny", [])
        self.knobs = {name: laid.get(name, 0) for name in ("remap", "stop", "stale", "page")}
        self.log = []
        self.shown = None  # what Describe tells until then: (time, interfaces, instances)

    def told(self):
        """Interfaces and instances as Describe tells them now."""
        for instance in self.instances.values():
            due, then = instance.get("due", (None, None))
            if due is not None and time.monotonic() >= due:
                instance["state"] = then
                del instance["due"]
        if self.shown and time.monotonic() < self.shown[0]:
            return self.shown[1], self.shown[2]
        return self.interfaces, self.instances

    def lag(self, seconds):
        """For so long Describe goes on to tell what it tells now."""
        if seconds:
            interfaces, instances = self.told()
            self.shown = (time.monotonic() + seconds, copy.deepcopy(interfaces), copy.deepcopy(instances))

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

    def begin(self, action, has_dry_run=False):
        world = world_of(self.headers.get("Authorization"))
        if world is None:
            raise Refused("AuthFailure", "AWS was not able to validate the provided access credentials")
        if action in world.deny:
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
        world = Actions.begin(self, "AssignPrivateIpAddresses")
        to = self._get_param("NetworkInterfaceId")
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
        world = Actions.begin(self, "StopInstances", has_dry_run=True)
        return ActionResult({"StoppingInstances": change(self, world, "stopping", "stopped")})

    def start_instances(self):
        world = Actions.begin(self, "StartInstances", has_dry_run=True)
        return ActionResult({"StartingInstances": change(self, world, "pending", "running")})


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
    changes = []
    for id in ids:
        of = world.instances[id]
        before = of["state"]
        if before not in (meanwhile, then):
            of["state"] = meanwhile
            of["due"] = (time.monotonic() + world.knobs["stop"], then)
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
    if nic.get("instance"):
        attachment = {"AttachmentId": f"eni-attach-{id[4:]}", "InstanceId": nic["instance"], "Status": "attached"}
        told |= {"Attachment": attachment, "Status": "in-use"}
    return told


def instance(interfaces, id, of):
    told = {"InstanceId": id, "State": state(of["state"]), "StateTransitionReason": of.get("reason", "")}
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
    `delay` (of `seconds`, before the act), or `steal` (after the act `address` goes to interface `to`).
    """

    def __init__(self):
        self.moto = DomainDispatcherApplication(create_backend_app)

    def __call__(self, env, start):
        path = env.get("PATH_INFO", "")
        if path.startswith("/world/"):
            return self.page(env, start, path.removeprefix("/world/"))
        body = env["wsgi.input"].read(int(env.get("CONTENT_LENGTH") or 0))
        env["wsgi.input"] = io.BytesIO(body)
        params = dict(urllib.parse.parse_qsl(body.decode()))
        action, world = params.get("Action", ""), world_of(env.get("HTTP_AUTHORIZATION"))
        with LOCK:
            fault = world.fault(action) if world else None
        kind = fault["kind"] if fault else None
        if kind == "delay":
            time.sleep(fault["seconds"])
        if kind == "refuse":
            return self.answer(start, world, action, params, *refusal(fault))
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

    def note(self, world, action, params, answer):
        if world:
            world.log.append({"action": action, "params": params, "answer": answer})

    def answer(self, start, world, action, params, status, headers, content):
        self.note(world, action, params, status.split()[0])
        start(status, headers)
        return [content]

    def page(self, env, start, key):
        with LOCK:
            if env["REQUEST_METHOD"] == "PUT":
                laid = json.loads(env["wsgi.input"].read(int(env["CONTENT_LENGTH"])))
                WORLDS[key] = World(laid)
            world = WORLDS[key]
            world.told()
            told = {"interfaces": world.interfaces, "instances": world.instances, "log": world.log}
            content = json.dumps(told).encode()
        start("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(content)))])
        return [content]


def refusal(fault):
    code, status = fault["code"], fault.get("status", "400 Bad Request")
    error = f"<Error><Code>{code}</Code><Message>by the test</Message></Error>"
    content = f"<Response><Errors>{error}</Errors><RequestID>test</RequestID></Response>".encode()
    return status, [("Content-Type", "text/xml"), ("Content-Length", str(len(content)))], content


def steal(world, fault):
    for nic in world.interfaces.values():
        nic["secondary"] = [address for address in nic["secondary"] if address != fault["address"]]
    world.interfaces[fault["to"]]["secondary"].append(fault["address"])


def main():
    for name, method in vars(Actions).items():
        if not name.startswith("_") and name != "begin":
            setattr(EC2Response, name, method)
    server = make_server("127.0.0.1", 0, Server(), threaded=True)
    print(server.port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
