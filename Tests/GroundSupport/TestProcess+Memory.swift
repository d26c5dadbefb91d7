import Glibc

extension TestProcess {
    /// How often `needle` stands in the memory that the process can read and write. The process is not stopped meanwhile,
    /// and an occurrence that two regions share is not found.
    ///
    /// Reads /proc/PID/mem, which the kernel opens to root alone where a process has forbidden core dumps.
    package func occurrences(of needle: [UInt8]) throws -> Int {
        let memory = unsafe open("/proc/\(identifier)/mem", O_RDONLY | O_CLOEXEC)
        guard memory >= 0 else { throw Failure(description: "cannot open the memory of \(identifier): \(errno)") }
        defer { close(memory) }
        return try writableRegions().reduce(0) { $0 + Self.count(needle, in: memory, $1) }
    }

    private func writableRegions() throws -> [Range<off_t>] {
        guard let file = unsafe fopen("/proc/\(identifier)/maps", "re") else {
            throw Failure(description: "cannot read the memory map of \(identifier): \(errno)")
        }
        defer { unsafe fclose(file) }
        var regions: [Range<off_t>] = []
        var line = [CChar](repeating: 0, count: 4096)
        while unsafe fgets(&line, CInt(line.count), file) != nil {
            let text = String(decoding: line.prefix { $0 != 0 }.map(UInt8.init(bitPattern:)), as: UTF8.self)
            let parts = text.split(separator: " ")
            let ends = parts[0].split(separator: "-").compactMap { off_t($0, radix: 16) }
            if parts[1].hasPrefix("rw"), ends.count == 2 { regions.append(ends[0]..<ends[1]) }
        }
        return regions
    }

    private static func count(_ needle: [UInt8], in memory: CInt, _ region: Range<off_t>) -> Int {
        var count = 0
        var position = region.lowerBound
        var buffer = [UInt8](repeating: 0, count: 1 << 20)
        while position < region.upperBound {
            let wanted = min(buffer.count, Int(region.upperBound - position))
            let length = unsafe pread(memory, &buffer, wanted, position)
            // The region was unmapped meanwhile.
            guard length >= needle.count else { break }
            unsafe buffer.withUnsafeBytes { bytes in
                guard let start = bytes.baseAddress else { return }
                var offset = 0
                while length - offset >= needle.count,
                    let found = unsafe memchr(start + offset, CInt(needle[0]), length - offset - needle.count + 1)
                {
                    if unsafe memcmp(found, needle, needle.count) == 0 { count += 1 }
                    offset = unsafe UnsafeRawPointer(found) - start + 1
                }
            }
            if length < buffer.count { break }
            // What lies across two pieces is found in the second.
            position += off_t(length - needle.count + 1)
        }
        return count
    }
}
