"""Whatever happens, in any order: the room adds up, the bound holds, and the order is of use."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from firstlight.core_node.kv.disk_index import DiskIndex, Found

NAMES = st.sampled_from([f"b{number}" for number in range(9)])
FILES = st.lists(st.integers(1, 4), max_size=5)


class IndexMachine(RuleBasedStateMachine):
    """The writer and its callers over an index, beside the directory that it speaks of."""

    @initialize(total=st.integers(2, 7), ours=st.integers(0, 9), others=FILES, spoiled=FILES)
    def begin_with(self, total, ours, others, spoiled):
        self.total = total
        self.index = DiskIndex(total)
        self.look(ours, others, spoiled)

    def look(self, ours, others, spoiled):
        """Files by name, and what is held, the first to go first."""
        found = Found(
            blocks=tuple(f"b{number}" for number in range(ours)),
            others=tuple((f"o{at}", slots) for at, slots in enumerate(others)),
            spoiled=tuple((f"s{at}", slots) for at, slots in enumerate(spoiled)),
        )
        self.index.restore(found)
        self.files = dict.fromkeys(found.blocks, 1) | dict(found.others) | dict(found.spoiled)
        self.others = list(found.others)
        self.held = list(found.blocks)
        self.trim()
        self.within = sum(self.files.values()) <= self.total
        """A directory may be beyond the bound at first, until the first write."""
        self.writing = None
        self.flushed = False

    def trim(self):
        dropped = 0
        while len(self.held) + sum(slots for _, slots in self.others) > self.total - 1:
            (self.others or self.held).pop(0)
            dropped += 1
        return dropped

    @rule(name=NAMES)
    def touch(self, name):
        assert self.index.touch(name) == (name in self.held)
        if name in self.held:
            self.held.remove(name)
            self.held.append(name)

    @rule(name=NAMES)
    def drop(self, name):
        self.index.drop(name)
        if name in self.held:
            self.held.remove(name)

    @rule()
    def clear(self):
        self.index.clear()
        self.held.clear()
        self.flushed = True

    @precondition(lambda self: self.index.doomed is not None)
    @rule()
    def remove(self):
        name = self.index.doomed
        assert name not in self.held
        assert name not in dict(self.others)
        del self.files[name]  # once, and only what is there
        self.index.removed(name)

    @precondition(lambda self: self.writing is None)
    @rule(name=NAMES)
    def begin(self, name):
        while self.index.doomed is not None:
            self.remove()
        self.within = True
        if name in self.held:
            return
        self.index.begin()
        self.writing, self.flushed = name, False
        self.files["part"] = 1

    @precondition(lambda self: self.writing is not None)
    @rule()
    def abandon(self):
        self.index.abandon()
        del self.files["part"]
        self.writing = None

    @precondition(lambda self: self.writing is not None)
    @rule()
    def land(self):
        name, self.writing = self.writing, None
        self.files[name] = self.files.pop("part")
        evicted = self.index.land(name)
        self.held.append(name)
        assert evicted == self.trim()
        if self.flushed:
            self.index.drop(name)
            self.held.remove(name)

    @precondition(lambda self: self.writing is None)
    @rule(ours=st.integers(0, 9), others=FILES, spoiled=FILES)
    def look_again(self, ours, others, spoiled):
        self.look(ours, others, spoiled)

    @invariant()
    def the_room_adds_up(self):
        index = self.index
        assert index.free + index.used + index.cached == index.total == self.total
        assert min(index.free, index.used, index.cached) >= 0
        assert index.cached == len(self.held)
        taken = sum(self.files.values())
        assert index.free == max(0, self.total - taken)
        if self.within:
            assert taken <= self.total

    @invariant()
    def what_is_held_is_there_and_is_what_was_used_last(self):
        assert set(self.held) <= set(self.files)
        assert all(self.index.holds(name) for name in self.held)  # with their count: no other


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
