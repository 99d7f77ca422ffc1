"""Does with the vendor's Ansible modules (netapp.ontap), one by one, what operators do, and checks what came of it.

Usage: ansible_modules.py URL USER PASSWORD, of a system whose contents may be changed: the fake, with its small world.
The modules speak only HTTPS. Each step is run twice, and must change nothing the second time.
Ends with 1 at the first step that is not as expected.
"""

import base64
import json
import ssl
import subprocess
import sys
import urllib.parse
import urllib.request

COLLECTION = "ansible_collections.netapp.ontap.plugins.modules"
SECONDS = 120

VOLUME = {
    "state": "present",
    "name": "ansible01",
    "vserver": "svm1",
    "aggregate_name": "aggr1",
    "size": 10,
    "size_unit": "gb",
    "junction_path": "/ansible01",
    "export_policy": "ansible_policy",
    "unix_permissions": "755",
    "snapshot_policy": "none",
    "wait_for_completion": True,
}
RULE = {
    "state": "present",
    "vserver": "svm1",
    "name": "ansible_policy",
    "rule_index": 1,
    "client_match": "10.0.0.101",
    "protocol": "nfs4",
    "ro_rule": "sys",
    "rw_rule": "sys",
    "super_user_security": "sys",
}

# Module, its arguments, then what must hold: path, query, and what the first record shows (None: no record).
STEPS = [
    (
        "na_ontap_nfs",
        {"state": "present", "vserver": "svm1", "nfsv41": "enabled", "tcp_max_xfer_size": 262144},
        ("/protocols/nfs/services", {"svm.name": "svm1"}, {"transport.tcp_max_transfer_size": 262144}),
    ),
    (
        "na_ontap_export_policy",
        {"state": "present", "vserver": "svm1", "name": "ansible_policy"},
        ("/protocols/nfs/export-policies", {"name": "ansible_policy"}, {"svm.name": "svm1"}),
    ),
    (
        "na_ontap_export_policy_rule",
        RULE,
        (
            "/protocols/nfs/export-policies",
            {"name": "ansible_policy", "rules.clients.match": "10.0.0.101"},
            {"rules.0.clients.0.match": "10.0.0.101", "rules.0.rw_rule.0": "sys"},
        ),
    ),
    (
        "na_ontap_export_policy_rule",
        RULE | {"client_match": "10.0.0.102"},
        (
            "/protocols/nfs/export-policies",
            {"name": "ansible_policy"},
            {"rules.0.clients": [{"match": "10.0.0.102"}]},
        ),
    ),
    (
        "na_ontap_volume",
        VOLUME,
        (
            "/storage/volumes",
            {"name": "ansible01", "nas.path": "/ansible01"},
            {"size": 10 * 1024**3, "nas.export_policy.name": "ansible_policy", "state": "online"},
        ),
    ),
    (
        "na_ontap_volume",
        VOLUME | {"size": 20},
        ("/storage/volumes", {"name": "ansible01"}, {"size": 20 * 1024**3}),
    ),
    (
        "na_ontap_snapshot",
        {"state": "present", "vserver": "svm1", "volume": "ansible01", "snapshot": "nightly"},
        ("/storage/volumes/{ansible01}/snapshots", {"name": "nightly"}, {"state": "valid"}),
    ),
    (
        "na_ontap_rest_cli",
        {
            "command": "volume",
            "verb": "PATCH",
            "params": {"vserver": "svm1", "volume": "ansible01"},
            "body": {"is-preserve-unlink-enabled": True},
        },
        (
            "/private/cli/volume",
            {"volume": "ansible01", "fields": "is_preserve_unlink_enabled"},
            {"is_preserve_unlink_enabled": True},
        ),
    ),
    (
        "na_ontap_snapshot",
        {"state": "absent", "vserver": "svm1", "volume": "ansible01", "snapshot": "nightly"},
        ("/storage/volumes/{ansible01}/snapshots", {"name": "nightly"}, None),
    ),
    (
        "na_ontap_export_policy_rule",
        {"state": "absent", "vserver": "svm1", "name": "ansible_policy", "rule_index": 1},
        ("/protocols/nfs/export-policies", {"name": "ansible_policy", "rules.index": "1"}, None),
    ),
]

# Says "changed" whenever it is run: it cannot know what a command does.
ALWAYS_CHANGES = {"na_ontap_rest_cli"}


class System:
    """The system under test: as the modules reach it, and a second way to look at what they did."""

    def __init__(self, url, user, password):
        self.url, self.user, self.password = url, user, password
        self.context = ssl.create_default_context()
        self.context.check_hostname = False
        self.context.verify_mode = ssl.CERT_NONE

    def module(self, name, arguments):
        """Runs one module by itself and returns what it answers."""
        address = urllib.parse.urlsplit(self.url)
        arguments = arguments | {
            "hostname": address.hostname,
            "http_port": address.port,
            "username": self.user,
            "password": self.password,
            "https": True,
            "validate_certs": False,
            "use_rest": "always",
        }
        done = subprocess.run(
            [sys.executable, "-m", f"{COLLECTION}.{name}"],
            input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        try:
            return json.loads(done.stdout.strip().splitlines()[-1])
        except (IndexError, ValueError):
            raise AssertionError(f"the module gave no answer: {done.stdout}{done.stderr}") from None

    def get(self, path, query):
        url = f"{self.url}/api{path}?{urllib.parse.urlencode(query)}"
        login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        request = urllib.request.Request(url, headers={"Authorization": f"Basic {login}"})
        with urllib.request.urlopen(request, context=self.context, timeout=SECONDS) as answer:
            return json.load(answer)["records"]

    def records(self, path, query):
        if "{" in path:
            before, volume, after = path.replace("}", "{").split("{")
            path = before + self.get("/storage/volumes", {"name": volume})[0]["uuid"] + after
        return self.get(path, {"fields": "*"} | query)


def at(record, field):
    for key in field.split("."):
        record = record[int(key)] if isinstance(record, list) else record.get(key)
        if record is None:
            return None
    return record


def check(system, path, query, wanted):
    records = system.records(path, query)
    if wanted is None:
        if records:
            raise AssertionError(f"{path} {query} still has {records}")
        return
    if not records:
        raise AssertionError(f"{path} {query} has no record")
    for field, value in wanted.items():
        if at(records[0], field) != value:
            raise AssertionError(f"{field} of {path} {query} is {at(records[0], field)!r}, not {value!r}")


def run(system, name, arguments, effect):
    for time in ("first", "second"):
        answer = system.module(name, arguments)
        if answer.get("failed"):
            raise AssertionError(f"the module failed the {time} time: {answer.get('msg')}")
        wanted = time == "first" or name in ALWAYS_CHANGES
        if answer.get("changed") != wanted:
            raise AssertionError(f"the {time} time, changed is {answer.get('changed')}, not {wanted}: {answer}")
        check(system, *effect)


def main():
    system = System(*sys.argv[1:])
    for number, (name, arguments, effect) in enumerate(STEPS, 1):
        try:
            run(system, name, arguments, effect)
        except Exception as error:
            sys.exit(f"ansible: step {number} of {len(STEPS)}, {name}: {type(error).__name__}: {error}")
    modules = {name for name, _, _ in STEPS}
    print(f"ansible: {len(STEPS)} steps with {len(modules)} modules passed")


if __name__ == "__main__":
    main()
