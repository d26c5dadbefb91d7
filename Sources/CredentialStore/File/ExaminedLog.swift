internal import OAuth

/// What an examination finds of a store's log, and what of it can be saved: the events behind the last gap.
struct ExaminedLog {
    private(set) var files: [ExaminedFile] = []
    /// What a new store's log begins with.
    private(set) var state = LogState()
    /// The segments of a new store's log.
    private(set) var segments: [Int64] = []

    /// Far more events than a segment has: how far the numbers go on where nobody knows the last one that was given.
    private static let safeDistance: Int64 = 1 << 20

    private static let loss = "events up to this file's last; listeners are told that they missed some"

    /// - Parameters:
    ///   - catalog: nil where there is none that can be read.
    ///   - requiresState: whether the file with the state must be there.
    mutating func examine(_ view: StoreView, catalog: Catalog.Content?, requiresState: Bool) {
        let known = readState(view, requiresState)
        var last = known?.trimmed ?? 0
        // Whether the log's end is known.
        var isComplete = true
        for segment in names(view) {
            let path = FileLog.path(of: segment)
            var flaw: FileFlaw?
            var frames: [LogFrame.Extent] = []
            do throws(FileFlaw) {
                guard let bytes = try view.read(path) else { throw .missing }
                (frames, flaw) = LogFrame.frames(of: bytes, in: segment)
                if let catalog, segment > catalog.segment { throw .uncatalogued }
            } catch {
                flaw = error
            }
            let isFirst = segments.isEmpty && isComplete
            var hasGap = segment != last + 1
            if isFirst { hasGap = known.map { segment > $0.trimmed + 1 } ?? false }
            if hasGap || flaw != nil { segments = [] }
            let isNameKnown = !isFirst || known?.trimmed == 0
            if hasGap, isNameKnown, isComplete {
                note(FileLog.path(of: last + 1), "events from \(last + 1) on", .missing, Self.loss)
            }
            isComplete = flaw == nil
            if flaw == nil { segments.append(segment) }
            last = max(last, segment - 1, frames.last?.last ?? 0)
            note(path, "events from \(segment) on", flaw ?? (hasGap && !isNameKnown ? .gap : nil), Self.loss)
        }
        if let segment = catalog?.segment, segment > last {
            let path = FileLog.path(of: segment)
            note(path, "events from \(segment) on", .missing, Self.loss)
            (segments, isComplete, last) = ([], false, segment)
        }
        if known == nil {
            // It said which events belong to tenants that were removed: none of them may be told to a tenant that has
            // the name now.
            segments = []
        }
        if !isComplete { last += Self.safeDistance }
        state = known ?? LogState()
        if let first = segments.first {
            state.trim(to: max(state.trimmed, first - 1))
        } else {
            state.trim(to: max(state.trimmed, last))
        }
    }

    private mutating func note(_ path: String, _ subject: String, _ flaw: FileFlaw?, _ loss: String) {
        files.append(ExaminedFile(path: path, subject: subject, flaw: flaw, loss: flaw == nil ? nil : loss))
    }

    private mutating func readState(_ view: StoreView, _ isRequired: Bool) -> LogState? {
        var state: LogState?
        var flaw: FileFlaw?
        do throws(FileFlaw) {
            if let bytes = try view.read(FileLog.statePath) {
                do throws(FramedFile.Failure) {
                    state = try LogState(decoding: bytes)
                } catch {
                    throw LogState.flaw(error, of: bytes)
                }
            } else if isRequired {
                throw .missing
            } else {
                return LogState()
            }
        } catch {
            flaw = error
        }
        note(
            FileLog.statePath, "how far the events were trimmed", flaw,
            "all events; listeners are told that they missed some")
        return state
    }

    private mutating func names(_ view: StoreView) -> [Int64] {
        var segments: [Int64] = []
        do throws(FileFlaw) {
            for name in try view.names(in: FileLog.directoryName) {
                let path = "\(FileLog.directoryName)/\(name)"
                if path == FileLog.statePath { continue }
                if let segment = FileLog.segment(at: path) {
                    segments.append(segment)
                } else {
                    note(path, "an unknown file", .unknownName, "nothing: no events have this name")
                }
            }
        } catch {
            note(FileLog.directoryName, "the directory of the events", error, "all events")
        }
        return segments.sorted()
    }
}
