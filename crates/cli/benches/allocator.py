"""The caching allocator's rules for one stream under its default settings, in plain Python: the benchmark's other side.

Reads `a BYTES` and `f NUMBER` lines; prints the seconds that they take and the most bytes reserved.
"""

import sys
import time
from bisect import bisect_left, insort

MIB = 1 << 20


class Block:
    __slots__ = ("address", "size", "pool", "before", "after", "free")

    def __init__(self, address, size, pool, before=None, after=None):
        self.address, self.size, self.pool = address, size, pool
        self.before, self.after, self.free = before, after, False


def run(asks):
    pools = ([], [])  # free blocks as (size, address, block), sorted
    live, reserved, most, edge = [], 0, 0, 1 << 62

    def remove(block):
        pool = pools[block.pool]
        del pool[bisect_left(pool, (block.size, block.address))]

    for what, number in asks:
        if what == "a":
            size = max(512, -(-number // 512) * 512)
            kind = 0 if size <= MIB else 1
            pool = pools[kind]
            at = bisect_left(pool, (size, 0))
            if at < len(pool):
                block = pool.pop(at)[2]
            else:
                segment = 2 * MIB if kind == 0 else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
                edge -= segment
                reserved += segment
                most = max(most, reserved)
                block = Block(edge, segment, kind)
            rest = block.size - size
            if rest >= 512 if kind == 0 else rest > MIB:
                left = Block(block.address + size, rest, kind, block, block.after)
                if block.after:
                    block.after.before = left
                block.after, block.size, left.free = left, size, True
                insort(pool, (left.size, left.address, left))
            block.free = False
            live.append(block)
        else:
            block = live[number]
            before, after = block.before, block.after
            if before and before.free:
                remove(before)
                before.size += block.size
                before.after = after
                if after:
                    after.before = before
                block = before
            if after and after.free:
                remove(after)
                block.size += after.size
                block.after = after.after
                if after.after:
                    after.after.before = block
            block.free = True
            insort(pools[block.pool], (block.size, block.address, block))
    return most


with open(sys.argv[1]) as file:
    asks = [(line[0], int(line[2:])) for line in file]
began = time.perf_counter()
reserved = run(asks)
print(time.perf_counter() - began, reserved)
