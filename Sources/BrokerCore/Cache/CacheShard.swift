internal import Containers
internal import Reactor

/// What readers note of an entry in a cache: a conclusion, and what it was drawn from.
struct CacheNote: Equatable {
    var source: Int64 = 0
    var conclusion: Int64 = 0
}

/// The part of a cache that stands under one lock: a table of entries with marks of their use, and which keys were
/// changed. Every operation on a key takes the same time however many there are, except when the table grows or the hand
/// has far to go.
///
/// Keys come with their hash, so that it is computed once, outside of the lock. Entries stand in slots; the table holds
/// the slots' numbers (open addressing with linear probing), a part of each hash, and each value's hint. What a look-up of
/// the busiest kind reads is found by its place in the table, so that it waits for memory twice and not once for each
/// object on the way.
///
/// What goes where there is no room is found by a hand that moves around the slots (the CLOCK of F. J. Corbató, 1968): it
/// takes the mark from what was used since it came by last, and stops at what was not. A list in the order of use would
/// have each look-up among a million write to three entries' memory besides its own.
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
        /// Nil in a slot that is free.
        var entry: Entry?
        var tag: UInt32
        var bytes: UInt32
        /// The next one that is free, in one that is.
        var nextFree: Int32 = CacheShard.none
    }

    /// What there is of a slot for look-ups, which have to do with nothing else of it.
    private struct Validity {
        var checked: MonotonicInstant
        var note = CacheNote()
    }

    /// A place in the table.
    private struct Place {
        /// `none` where nothing stands.
        var slot = CacheShard.none
        /// The lower half of the hash, from which the place follows.
        var tag: UInt32 = 0
        var hint = Value.Hint()
    }

    /// Whether an entry was used since the hand passed it, and how often it may be renewed yet without being used.
    private struct Use: Equatable {
        private var bits: UInt8

        private init(bits: UInt8) { self.bits = bits }

        private static var mark: UInt8 { 0x80 }

        /// Of a slot without an entry.
        static var free: Use { Use(bits: 0xff) }
        /// Of an entry that has just come. Mostly it takes the place of the one that went last, so that it has a whole round
        /// to be used in; where it takes that of one that was removed, the hand may come by sooner.
        static var new: Use { Use(bits: CacheShard.renewalsPerUse) }
        static var used: Use { Use(bits: mark | CacheShard.renewalsPerUse) }

        var isMarked: Bool { bits & Self.mark != 0 }
        var renewals: UInt8 { bits & ~Self.mark }

        mutating func unmark() { bits &= ~Self.mark }

        mutating func noteRenewal() { bits -= 1 }
    }

    /// What was changed about a key, by the count of changes.
    private struct Change {
        /// The last one that was made or may have been made here, or that took the key away.
        var made: UInt64 = 0
        /// The last one that the store told of.
        var told: UInt64 = 0
        /// The highest version that the store told of.
        var version: Int64 = .min
    }

    /// How often an entry is renewed after it was used last. As many renewals cost less than the one reading that a
    /// caller has to wait for where it was let run out.
    static var renewalsPerUse: UInt8 { 6 }

    private static var none: Int32 { -1 }
    private static var leastTable: Int { 16 }

    /// What an entry takes of memory beside its key's and value's own allocations. Arrays that grow by doubling are three
    /// quarters full on average; the table, which grows when that many of its places are taken, half full.
    static var overhead: Int {
        let object = MemoryLayout<Key>.stride + MemoryLayout<Value>.stride + 16 + 8
        let slot = MemoryLayout<Slot>.stride + MemoryLayout<Validity>.stride + MemoryLayout<Use>.stride
        return Footprint.allocation(object) + slot * 4 / 3 + MemoryLayout<Place>.stride * 2
    }

    private let limit: Int
    private var slots: [Slot] = []
    /// Of each slot.
    private var validities: [Validity] = []
    /// Of each slot. Close together: the hand passes a shard's thousands in some microseconds.
    private var uses: [Use] = []
    /// The slot that the hand looks at next.
    private var hand = 0
    private var table = [Place](repeating: Place(), count: leastTable)
    private var free = none
    private(set) var count = 0
    private(set) var bytes = 0
    private(set) var evictions = 0
    private(set) var renewals = 0

    /// Rises with every change that somebody made, as against values that somebody read.
    private(set) var changes: UInt64 = 0
    /// By the key's hash: two keys that share one cost a reading more, and no memory is held for a key that is long.
    private var lastChange = BoundedTable<Int, Change>(capacity: 512)
    /// Changes up to this one are taken for changes of every key.
    private var horizon: UInt64 = 0

    /// - Parameter limit: what the entries may take of memory, in bytes.
    init(limit: Int) {
        self.limit = limit
    }

    // MARK: Changes

    mutating func noteChange(of hash: Int) {
        changes += 1
        var change = lastChange[hash] ?? Change()
        change.made = changes
        note(change, of: hash)
    }

    mutating func noteNews(of hash: Int, version: Int64) {
        changes += 1
        var change = lastChange[hash] ?? Change()
        change.told = changes
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
        horizon = max(horizon, forgotten.made, forgotten.told)
    }

    /// - Parameters:
    ///   - ticket: the count of changes at some time.
    ///   - version: of a value that was read or written after that time; it has seen what the store told of that version
    ///     and of earlier ones. Nil for nothing.
    func hasChanged(_ hash: Int, since ticket: UInt64, asSeenBy version: Int64?) -> Bool {
        if horizon > ticket { return true }
        guard let change = lastChange[hash] else { return false }
        if change.made > ticket { return true }
        return change.told > ticket && (version ?? .min) < change.version
    }

    // MARK: Entries

    /// The slot of the key's entry.
    func find(_ key: Key, _ hash: Int) -> Int? { place(key, hash).map { Int(table[$0].slot) } }

    private func place(_ key: Key, _ hash: Int) -> Int? {
        let (table, slots) = (table.span, slots.span)
        return place(hash) { slots[Int(table[$0].slot)].entry?.key == key }
    }

    /// The slot of the entry whose key has that hash, and whose value has a hint that matches, and its place in the table.
    @inline(__always)
    func find(_ hash: Int, where matches: (Value.Hint) -> Bool) -> (slot: Int, place: Int)? {
        let table = table.span
        guard let place = place(hash, where: { matches(table[$0].hint) }) else { return nil }
        return (Int(table[place].slot), place)
    }

    /// What stands at a place in the table.
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

    /// What was noted of an entry by its readers, for as long as it is there.
    func note(_ slot: Int) -> CacheNote { validities[slot].note }

    mutating func note(_ slot: Int, _ note: CacheNote) { validities[slot].note = note }

    /// An entry was used.
    @inline(__always)
    mutating func use(_ slot: Int) {
        // What is used all the time is not written to all the time.
        if uses[slot] != .used { uses[slot] = .used }
    }

    /// Puts the entry in place of the key's present one; nil, and an entry that takes more than the limit, leave none.
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
            // Before what it leads to goes with the entry.
            table[present].hint = new.entry.value.hint
            (slots[slot].entry, slots[slot].bytes) = (new.entry, size)
            validities[slot] = Validity(checked: checked)
            uses[slot] = .used
        } else {
            let tag = UInt32(truncatingIfNeeded: hash)
            slot = add(Slot(entry: new.entry, tag: tag, bytes: size), Validity(checked: checked), new.entry.value.hint)
        }
        bytes += new.bytes
        // It fits, so that there is another one for as long as there is no room.
        while bytes > limit {
            evictions += 1
            remove(moveHand(sparing: slot))
        }
    }

    /// Moves the hand to the entry that is to go next. Where all of them were used since it came by last, it goes round
    /// once, and the first one that it came by is the next.
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

    /// Looks at `limit` slots that are `step` apart, from `slot` on, and names the entries that were checked during that
    /// time and used not too long ago.
    /// - Returns: the slot to go on with; nil where the last one has been looked at.
    func find(
        from slot: Int, step: Int, limit: Int, checked: Range<MonotonicInstant>, _ found: (Int, Entry) -> Void
    ) -> Int? {
        var slot = slot
        for _ in 0..<limit {
            if slot >= slots.count { return nil }
            if uses[slot].renewals > 0, checked.contains(validities[slot].checked), let entry = slots[slot].entry {
                found(slot, entry)
            }
            slot += step
        }
        return slot
    }

    /// The store was found to hold what the entry was read from, by somebody who asked at that time. An entry that has
    /// left the slot meanwhile stays away.
    mutating func renew(_ slot: Int, _ entry: AnyObject, checked: MonotonicInstant) {
        guard let present = slots[slot].entry, present === entry, uses[slot].renewals > 0 else { return }
        validities[slot].checked = max(validities[slot].checked, checked)
        uses[slot].noteRenewal()
        renewals += 1
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

    /// Takes the slot out of the table, and moves those up that were kept from their place by it: no marks of what was
    /// here stay behind.
    private mutating func leave(_ slot: Int) {
        let mask = table.count - 1
        var gap = Int(slots[slot].tag) & mask
        while table[gap].slot != Int32(slot) { gap = (gap + 1) & mask }
        var place = (gap + 1) & mask
        while table[place].slot != Self.none {
            let home = Int(table[place].tag) & mask
            // Whether the gap lies between the home of what stands here and this place.
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
