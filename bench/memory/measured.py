"""What runs take, beside what `trireme plan` says of them; kept in files, so that a bench that is started again goes on."""

import hashlib
import json
from dataclasses import asdict, dataclass, field

# Parts that do not grow with the sequence.
REST = ("process", "parameters", "gradients", "optimizer", "gathered_units", "communication")


def planned_bytes(plan):
    return plan["device_total"]


def rest_bytes(plan):
    """What is there however short the sequence is."""
    return sum(plan["device"][part] for part in REST)


@dataclass
class Row:
    """A run. Bytes are those of the rank that has most."""
    name: str
    options: str                              # a digest of its run.json
    sequence: int
    peak: int
    start: int                                # before the model was built
    plan: dict = field(default_factory=dict)  # what `trireme plan` prints

    @property
    def planned(self):
        return planned_bytes(self.plan)

    @property
    def rest(self):
        return rest_bytes(self.plan)


def digest(options, folder):
    """The same for runs in whatever folder."""
    text = json.dumps(options, sort_keys=True).replace(str(folder), "")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Rows:
    """Runs that are kept in a JSON file: each is made once. Plans are made anew each time."""

    def __init__(self, path):
        self.path = path
        found = json.loads(path.read_text()) if path.exists() else []
        self.rows = {(row["name"], row["options"]): Row(**row) for row in found}

    def get(self, bench, name, options, ranks):
        """The run of these options, from the file or made now."""
        key, sequence = (name, digest(options, bench.folder)), options["data"]["sequence_length"]
        row = self.rows.get(key)
        if row is None:
            self.rows = {other: kept for other, kept in self.rows.items() if (kept.name, kept.sequence) != (name, sequence)}
            last = bench.train(options, ranks)[-1]
            row = Row(*key, sequence, last["peak_memory_bytes"], last["start_memory_bytes"])
        row.plan = bench.plan(options, ranks)
        self.rows[key] = row
        self.save()
        return row

    def by_name(self):
        """All that are there, by ascending length."""
        found = {}
        for row in sorted(self.rows.values(), key=lambda row: row.sequence):
            found.setdefault(row.name, []).append(row)
        return found

    def save(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps([asdict(row) for row in self.rows.values()], indent=1) + "\n")
