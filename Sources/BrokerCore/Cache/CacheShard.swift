import Containers
import Reactor

/// A conclusion that a reader has drawn from a cache entry and stores beside it, with what the conclusion depends on.
struct CacheNote: Equatable {
    var source: Int64 = 0
    var conclusion: Int64 = 0
}

/// The part of a cache that one lock protects: a hash table of entries, and which keys were changed lately. Every operation
/// on a key takes the same time however many entries there are, except when the table grows or the clock hand has to pass
/// many slots.
///
/// The caller computes the hash of a key once, outside of the lock. Entries are in slots. The hash table (open addressing
/// with linear probing) holds the slots' numbers, a part of each hash, and each value's hint. The most frequent look-up uses
/// only the hash table and the hint, so that it waits for memory twice, and not once for each object on the way.
///
/// Eviction uses the CLOCK algorithm (F. J. Corbató, 1968): a hand moves around the slots, clears the mark of each entry that
/// was used since the hand passed it last, and evicts the first entry without a mark. A list in the order of use would have
/// each look-up write to the memory of three other entries.
struct CacheShard<Key: Hashable & Sendable, Value: Cacheable>: Sendable {
    final class Entry: Sendable {
        let key: Key
        let value: Value
        let version: Int64

        init(_ key: Key, _ value: Value, version: Int64) {
            self.key = key
            self.value = value
            self.version = version
        }
    }

    private struct Slot {
        /// Nil in a free slot.
        var entry: Entry?
        var tag: UInt32
        var bytes: UInt32
        /// In a free slot, the next free slot.
        var nextFree: Int32 = CacheShard.none
    }

    /// What a look-up reads of a slot.
    private struct Validity {
        var checked: MonotonicInstant
        var note = CacheNote()
    }

    /// A place in the table.
    private struct Place {
        /// `none` in an empty place.
        var slot = CacheShard.none
        /// The lower half of the hash, which decides on the place.
        var tag: UInt32 = 0
        var hint = Value.Hint()
    }

    /// Whether an entry was used since the hand passed it, and how often it may still be revalidated without being used.
    private struct Use: Equatable {
        private var bits: UInt8

        private init(bits: UInt8) { self.bits = bits }

        private static var mark: UInt8 { 0x80 }

        /// The use of a free slot.
        static var free: Use { Use(bits: 0xff) }
        /// The use of a new entry. It mostly takes the slot of the entry that was evicted last, so that the hand makes a whole
        /// round before it returns. Where it takes the slot of an entry that was removed, the hand may come sooner.
        static var new: Use { Use(bits: CacheShard.revalidationsPerUse) }
        static var used: Use { Use(bits: mark | CacheShard.revalidationsPerUse) }

        var isMarked: Bool { bits & Self.mark != 0 }
        var revalidations: UInt8 { bits & ~Self.mark }

        mutating func unmark() { bits &= ~Self.mark }

        mutating func noteRevalidation() { bits -= 1 }
    }

    /// The last changes of a key, each as the value that `changes` then had.
    private struct Change {
        /// The last change that this process made or may have made, or that removed the key.
        var local: UInt64 = 0
        /// The last change that the store reported.
        var reported: UInt64 = 0
        /// The highest version that the store reported.
        var version: Int64 = .min
    }

    /// How often an entry is revalidated after its last use. So many revalidations cost less than the one read that a caller
    /// has to wait for after the entry has expired.
    static var revalidationsPerUse: UInt8 { 6 }

    private static var none: Int32 { -1 }
    private static var leastTable: Int { 16 }

    /// The memory that an entry takes beside the allocations of its key and value, in bytes. An array that grows by doubling
    /// is three quarters full on average. The hash table, which grows when it is three quarters full, is about half full.
    static var overhead: Int {
        let object = MemoryLayout<Key>.stride + MemoryLayout<Value>.stride + 16 + 8
        let slot = MemoryLayout<Slot>.stride + MemoryLayout<Validity>.stride + MemoryLayout<Use>.stride
        return MemorySize.allocation(object) + slot * 4 / 3 + MemoryLayout<Place>.stride * 2
    }

    private let limit: Int
    private var slots: [Slot] = []
    /// One for each slot.
    private var validities: [Validity] = []
    /// One for each slot. One byte each, so that the hand passes thousands of slots in a few microseconds.
    private var uses: [Use] = []
    /// The slot that the clock hand examines next.
    private var hand = 0
    private var table = [Place](repeating: Place(), count: leastTable)
    private var free = none
    private(set) var count = 0
    private(set) var bytes = 0
    private(set) var evictions = 0
    private(set) var revalidations = 0

    /// Counts the changes of keys. Values that were read do not count.
    private(set) var changes: UInt64 = 0
    /// By the key's hash, so that a long key takes no memory here. Two keys with one hash cost one read more.
    private var lastChange = BoundedTable<Int, Change>(capacity: 512)
    /// Each change up to this one counts as a change of every key.
    private var horizon: UInt64 = 0

    /// - Parameter limit: the memory that the entries may take, in bytes.
    init(limit: Int) {
        self.limit = limit
    }

    // MARK: Changes

    mutating func noteChange(of hash: Int) {
        changes += 1
        var change = lastChange[hash] ?? Change()
        change.local = changes
        note(change, of: hash)
    }

    mutating func noteReportedChange(of hash: Int, version: Int64) {
        changes += 1
        var change = lastChange[hash] ?? Change()
        change.reported = changes
        change.version = max(change.version, version)
        note(change, of: hash)
    }

    mutating func noteChangeOfAll() {
        changes += 1
        horizon = changes
        lastChange.removeAll()
    }

    private mutating func note(_ change: Change, of hash: Int) {
        // A reader whose ticket is older than a forgotten change reads once more than needed.
        guard let forgotten = lastChange.setNewest(change, forKey: hash)?.value else { return }
        horizon = max(horizon, forgotten.local, forgotten.reported)
    }

    /// Whether a key was changed in a way that a value does not contain.
    /// - Parameters:
    ///   - ticket: what `changes` was before the value was read or written.
    ///   - version: the value's version. The value contains every change that the store has reported with this version or a
    ///     lower one. Nil where no record was found.
    func hasChanged(_ hash: Int, since ticket: UInt64, asSeenBy version: Int64?) -> Bool {
        if horizon > ticket { return true }
        guard let change = lastChange[hash] else { return false }
        if change.local > ticket { return true }
        return change.reported > ticket && (version ?? .min) < change.version
    }

    // MARK: Entries

    /// The slot of the key's entry.
    func find(_ key: Key, _ hash: Int) -> Int? { place(key, hash).map { Int(table[$0].slot) } }

    private func place(_ key: Key, _ hash: Int) -> Int? {
        let (table, slots) = (table.span, slots.span)
        return place(hash) { slots[Int(table[$0].slot)].entry?.key == key }
    }

    /// The slot and the place in the hash table of the entry whose key has that hash and whose value has a matching hint.
    @inline(__always)
    func find(_ hash: Int, where matches: (Value.Hint) -> Bool) -> (slot: Int, place: Int)? {
        let table = table.span
        guard let place = place(hash, where: { matches(table[$0].hint) }) else { return nil }
        return (Int(table[place].slot), place)
    }

    /// The hint at a place in the hash table.
    @inline(__always)
    func hint(_ place: Int) -> Value.Hint { table[place].hint }

    @inline(__always)
    private func place(_ hash: Int, where matches: (Int) -> Bool) -> Int? {
        let table = table.span
        let tag = UInt32(truncatingIfNeeded: hash)
        var place = hash & (table.count - 1)
        while table[place].slot != Self.none {
            if table[place].tag == tag, matches(place) { return place }
            place = (place + 1) & (table.count - 1)
        }
        return nil
    }

    func entry(_ slot: Int) -> Entry { slots[slot].entry! }

    func checked(_ slot: Int) -> MonotonicInstant { validities[slot].checked }

    /// What a reader has noted of the entry. The note is dropped with the entry.
    func note(_ slot: Int) -> CacheNote { validities[slot].note }

    mutating func note(_ slot: Int, _ note: CacheNote) { validities[slot].note = note }

    /// An entry was used.
    @inline(__always)
    mutating func use(_ slot: Int) {
        // An entry that is used all the time is not written to each time.
        if uses[slot] != .used { uses[slot] = .used }
    }

    /// Replaces the key's entry. Nil, or an entry that takes more memory than the limit, leaves the key without an entry.
    mutating func set(
        _ key: Key, _ hash: Int, to new: (entry: Entry, bytes: Int)?, checked: MonotonicInstant
    ) {
        let present = place(key, hash)
        guard let new, new.bytes <= limit, let size = UInt32(exactly: new.bytes) else {
            if let present { remove(Int(table[present].slot)) }
            return
        }
        let slot: Int
        if let present {
            slot = Int(table[present].slot)
            bytes -= Int(slots[slot].bytes)
            // The hint refers to the old entry's memory, so it is replaced before that entry is.
            table[present].hint = new.entry.value.hint
            (slots[slot].entry, slots[slot].bytes) = (new.entry, size)
            validities[slot] = Validity(checked: checked)
            uses[slot] = .used
        } else {
            let tag = UInt32(truncatingIfNeeded: hash)
            slot = add(Slot(entry: new.entry, tag: tag, bytes: size), Validity(checked: checked), new.entry.value.hint)
        }
        bytes += new.bytes
        // The new entry alone fits, so there is another entry to evict for as long as the limit is exceeded.
        while bytes > limit {
            evictions += 1
            remove(moveHand(sparing: slot))
        }
    }

    /// Moves the hand to the entry that is to be evicted next. Where all entries were used since the hand passed them, it
    /// makes one whole round and returns to the first of them.
    private mutating func moveHand(sparing spared: Int) -> Int {
        while true {
            let slot = hand
            hand = slot + 1 == uses.count ? 0 : slot + 1
            if uses[slot] == .free || slot == spared { continue }
            if !uses[slot].isMarked { return slot }
            uses[slot].unmark()
        }
    }

    func visit(_ body: (Entry) -> Void) {
        for slot in slots { if let entry = slot.entry { body(entry) } }
    }

    /// Removes every entry that matches.
    mutating func removeAll(where matches: (Entry) -> Bool) {
        for slot in slots.indices {
            if let entry = slots[slot].entry, matches(entry) { remove(slot) }
        }
    }

    /// Visits `limit` slots that are `step` apart, from `slot` on, and passes those entries to `found` that were checked
    /// during that time and may still be revalidated without another use.
    /// - Returns: the slot to continue with; nil where the last slot has been visited.
    func find(
        from slot: Int, step: Int, limit: Int, checked: Range<MonotonicInstant>, _ found: (Int, Entry) -> Void
    ) -> Int? {
        var slot = slot
        for _ in 0..<limit {
            if slot >= slots.count { return nil }
            if uses[slot].revalidations > 0, checked.contains(validities[slot].checked), let entry = slots[slot].entry {
                found(slot, entry)
            }
            slot += step
        }
        return slot
    }

    /// The store still has the version that the entry was read from. Does nothing where the slot has another entry by now.
    /// - Parameter checked: taken before the store was asked.
    mutating func revalidated(_ slot: Int, _ entry: AnyObject, checked: MonotonicInstant) {
        guard let present = slots[slot].entry, present === entry, uses[slot].revalidations > 0 else { return }
        validities[slot].checked = max(validities[slot].checked, checked)
        uses[slot].noteRevalidation()
        revalidations += 1
    }

    private mutating func add(_ new: Slot, _ validity: Validity, _ hint: Value.Hint) -> Int {
        count += 1
        if count * 4 > table.count * 3 { growTable() }
        let slot: Int
        if free == Self.none {
            slot = slots.count
            slots.append(new)
            validities.append(validity)
            uses.append(.new)
        } else {
            slot = Int(free)
            free = slots[slot].nextFree
            (slots[slot], validities[slot], uses[slot]) = (new, validity, .new)
        }
        enter(Place(slot: Int32(slot), tag: new.tag, hint: hint))
        return slot
    }

    private mutating func remove(_ slot: Int) {
        leave(slot)
        count -= 1
        bytes -= Int(slots[slot].bytes)
        slots[slot].entry = nil
        slots[slot].nextFree = free
        free = Int32(slot)
        uses[slot] = .free
    }

    // MARK: The table

    private mutating func enter(_ new: Place) {
        var place = Int(new.tag) & (table.count - 1)
        while table[place].slot != Self.none { place = (place + 1) & (table.count - 1) }
        table[place] = new
    }

    /// Removes the slot from the hash table, and moves those entries up that collided with it (deletion without tombstones).
    private mutating func leave(_ slot: Int) {
        let mask = table.count - 1
        var gap = Int(slots[slot].tag) & mask
        while table[gap].slot != Int32(slot) { gap = (gap + 1) & mask }
        var place = (gap + 1) & mask
        while table[place].slot != Self.none {
            let home = Int(table[place].tag) & mask
            // Whether the gap lies between the home place of this entry and its present place.
            if (place - home) & mask >= (place - gap) & mask {
                table[gap] = table[place]
                gap = place
            }
            place = (place + 1) & mask
        }
        table[gap] = Place()
    }

    private mutating func growTable() {
        let old = table
        table = [Place](repeating: Place(), count: old.count * 2)
        for place in old where place.slot != Self.none { enter(place) }
    }
}
