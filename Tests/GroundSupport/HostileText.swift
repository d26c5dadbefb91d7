import ExternalText
import Glibc

/// Text made to be slow to read.
package enum HostileText {
    /// Combining marks of alternating combining class: to normalise them takes quadratic time.
    package static func marks(_ bytes: Int) -> String {
        "e" + String(repeating: "\u{301}\u{316}", count: bytes / 4)
    }

    /// The same for a query or a form.
    package static func escapedMarks(_ bytes: Int) -> String {
        "e" + String(repeating: "%CC%81%CC%96", count: bytes / 12)
    }

    /// The same for JSON.
    package static func jsonMarks(_ bytes: Int) -> String {
        "e" + String(repeating: #"\u0301\u0316"#, count: bytes / 12)
    }

    package static func repeated(_ text: String, _ bytes: Int) -> String {
        String(repeating: text, count: bytes / text.utf8.count)
    }
}

/// What reading takes of the thread that reads.
package enum ReadingCost {
    /// Time that the calling thread has spent on a processor, in nanoseconds: other load on the machine is not in it.
    package static var threadTime: Int64 {
        var time = timespec()
        unsafe clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time)
        return Int64(time.tv_sec) * 1_000_000_000 + Int64(time.tv_nsec)
    }

    /// The least of five runs of `read`, in nanoseconds.
    package static func least(_ read: () -> Void) -> Int64 {
        (0..<5).map { _ in
            let start = threadTime
            read()
            return threadTime - start
        }.min() ?? 0
    }

    /// How many times longer `read` takes for four times the size: about 4 where it is linear, 16 where it is quadratic.
    ///
    /// - Parameters:
    ///   - size: in bytes; with four times as much it has to take a time that can be measured.
    ///   - read: reads an input of the size that it is given, which `make` has made.
    package static func growth<Input>(from size: Int, _ make: (Int) -> Input, _ read: (Input) -> Void) -> Double {
        let (small, large) = (make(size), make(4 * size))
        var growth = Double.infinity
        // A machine that is busy enough disturbs even the least of five; it does not do so each time.
        for _ in 0..<4 where growth >= limit {
            let costOfSmall = least { read(small) }
            growth = min(growth, Double(least { read(large) }) / Double(max(costOfSmall, 1)))
        }
        return growth
    }

    /// What four times the size may take, as a multiple: more than linear growth makes of it, far less than quadratic
    /// growth does.
    package static let limit = 6.0
}
