#!/usr/bin/env python3
"""The schema of Terraform's AWS provider, of the kinds that `deploy/aws/terraform` uses, as JSON on standard output.

    schema.py provider-aws.jsii.tgz

The provider itself is a program of a gigabyte in a registry of its own. CDK Terrain's bindings for it are made from the
provider's schema, and a package of PyPI: each kind is a class whose comments and calls tell every argument's name, its
type, and whether it is computed, optional or required. What they do not tell: which values are allowed.
"""

import json
import re
import sys
import tarfile

# What a configuration uses besides is no known kind to the tests: add it here.
RESOURCES = [
    "ec2_subnet_cidr_reservation",
    "fsx_ontap_file_system",
    "fsx_ontap_storage_virtual_machine",
    "fsx_ontap_volume",
    "iam_instance_profile",
    "iam_role",
    "iam_role_policy",
    "iam_role_policy_attachment",
    "instance",
    "internet_gateway",
    "nat_gateway",
    "eip",
    "network_interface",
    "route",
    "route_table",
    "route_table_association",
    "secretsmanager_secret",
    "secretsmanager_secret_version",
    "security_group",
    "subnet",
    "vpc",
    "vpc_security_group_egress_rule",
    "vpc_security_group_ingress_rule",
]
DATA = ["ami"]

MEMBER = re.compile(r"// (\w+) - computed: (\w+), optional: (\w+), required: (\w+)")
CLASS = re.compile(r"^class (\w+) extends cdktn\.(\w+) \{$(.*?)^\}$", re.M | re.S)
HCL = re.compile(r"(\w+): \{\s+value: .*?isBlock: (\w+),\s+type: \"(\w+)\",\s+storageClassType: \"(\w+)\"", re.S)
NESTED = re.compile(r"new (\w+)\(this, \"\w+\"(?:, (true|false))?\)")
# What a getter calls tells its type, in Terraform's own notation.
TYPES = [
    (r"Fn\.tolist\(this\.getListAttribute", ["set", "string"]),
    (r"Fn\.tolist\(this\.getNumberListAttribute", ["set", "number"]),
    (r"getListAttribute", ["list", "string"]),
    (r"getNumberListAttribute", ["list", "number"]),
    (r"getStringMapAttribute", ["map", "string"]),
    (r"getBooleanMapAttribute", ["map", "bool"]),
    (r"getNumberMapAttribute", ["map", "number"]),
    (r"getStringAttribute", "string"),
    (r"getNumberAttribute", "number"),
    (r"getBooleanAttribute", "bool"),
    (r"interpolationForAttribute", "dynamic"),
    # The provider's own arguments are given, and never read.
    (r"return this\._\w+;", "dynamic"),
]


class Kind:
    """One module of the bindings: a resource, a data source or the provider."""

    def __init__(self, text):
        self.classes = {name: (base, body) for name, base, body in CLASS.findall(text)}
        # Structures have a function each that tells what is a block; the kind itself has a method.
        self.hcl = {}
        for name, body in re.findall(r"^function (\w+)ToHclTerraform\(struct\) \{$(.*?)^\}$", text, re.M | re.S):
            self.hcl[name.lower()] = {field: (block == "true", type) for field, block, type, _ in HCL.findall(body)}

    def top(self):
        bases = ("TerraformResource", "TerraformDataSource", "TerraformProvider")
        name, (_, body) = next((n, c) for n, c in self.classes.items() if c[0] in bases)
        hcl = body.partition("synthesizeHclAttributes() {")[2]
        return self.block(body, {field: (block == "true", type) for field, block, type, _ in HCL.findall(hcl)})

    def block(self, body, hcl):
        """What a class has, as attributes and nested blocks."""
        attributes, blocks = {}, {}
        parts = MEMBER.split(body)[1:]
        for name, computed, optional, required, rest in zip(*[iter(parts)] * 5):
            flags = {"computed": computed == "true", "optional": optional == "true", "required": required == "true"}
            nested = NESTED.search(rest)
            if nested is None:
                attributes[name] = {"type": type_of(name, rest), **flags}
                continue
            is_block, nesting = hcl.get(name, (False, "list"))
            inner, many = self.nested(nested.group(1))
            nesting = "set" if nested.group(2) == "true" else nesting
            if is_block:
                nesting = {"struct": "single"}.get(nesting, nesting)
                limits = {"min": int(flags["required"]), "max": 0 if many or nesting == "single" else 1}
                blocks[name] = {"nesting": nesting, **limits, "block": inner}
            else:
                attributes[name] = {"type": [nesting, object_of(inner)], **flags}
        return {"attributes": attributes, "blocks": blocks}

    def nested(self, name):
        """The block behind a class, and whether there may be several."""
        base, body = self.classes[name]
        many = base in ("ComplexList", "ComplexMap")
        if many:
            name = re.search(r"return new (\w+)\(", body).group(1)
            body = self.classes[name][1]
        return self.block(body, self.hcl.get(name.removesuffix("OutputReference").lower(), {})), many


def type_of(name, rest):
    for pattern, type in TYPES:
        if re.search(pattern, rest):
            return type
    raise ValueError(f"no type is known for {name}: {rest[:200]}")


def object_of(block):
    """A block as the type of an attribute."""
    fields = {name: attribute["type"] for name, attribute in block["attributes"].items()}
    return ["object", fields | {name: [of["nesting"], object_of(of["block"])] for name, of in block["blocks"].items()}]


def main():
    bindings = tarfile.open(sys.argv[1])
    read = lambda module: bindings.extractfile(f"package/lib/{module}/index.js").read().decode()
    provider = read("provider")
    told = {"version": re.search(r"providerVersion: '([\d.]+)'", provider).group(1), "provider": Kind(provider).top()}
    of = lambda prefix, names: {f"aws_{n}": Kind(read(prefix + n.replace("_", "-"))).top() for n in names}
    told |= {"resources": of("", RESOURCES), "data": of("data-aws-", DATA)}
    json.dump(told, sys.stdout, indent=1, sort_keys=True)


if __name__ == "__main__":
    main()
