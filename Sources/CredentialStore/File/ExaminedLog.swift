import OAuth

/// The result of examining a store's log. The events behind the last gap can be saved.
struct ExaminedLog {
    private(set) var files: [ExaminedFile] = []
    /// The state of the log in a repaired store.
    private(set) var state = LogState()
    /// The segments of the log in a repaired store.
    private(set) var segments: [Int64] = []

    /// How far a repaired store skips sequences when the last one is unknown: far more events than a segment has.
    private static let safeDistance: Int64 = 1 << 20

    private static let loss = "events up to the last one in this file; listeners are told that they missed events"

    /// - Parameters:
    ///   - catalog: nil when there is none, or when it cannot be read.
    ///   - requiresState: whether the file with the state must exist.
    mutating func examine(_ view: StoreView, catalog: Catalog.Content?, requiresState: Bool) {
        let known = readState(view, isRequired: requiresState)
        var last = known?.trimmed ?? 0
        // Whether the end of the log is known.
        var isComplete = true
        let names = segmentNames(view)
        for segment in names {
            let path = FileLog.path(of: segment)
            var flaw: FileFlaw?
            var frames: [LogFrame.Extent] = []
            do throws(FileFlaw) {
                guard let bytes = try view.read(path) else { throw .missing }
                (frames, flaw) = LogFrame.frames(of: bytes, in: segment)
                if let catalog, segment > catalog.segment { throw .uncatalogued }
                if flaw == nil, segment == names.last, let end = frames.last?.last, let known, end < known.trimmed {
                    throw .truncated
                }
            } catch {
                flaw = error
            }
            let isFirst = segments.isEmpty && isComplete
            var hasGap = segment != last + 1
            if isFirst { hasGap = known.map { segment > $0.trimmed + 1 } ?? false }
            if hasGap || flaw != nil { segments = [] }
            let isNameKnown = !isFirst || known?.trimmed == 0
            if hasGap, isNameKnown, isComplete {
                note(segment: last + 1, .missing)
            }
            isComplete = flaw == nil
            if flaw == nil { segments.append(segment) }
            last = max(last, segment - 1, frames.last?.last ?? 0)
            note(segment: segment, flaw ?? (hasGap && !isNameKnown ? .gap : nil))
        }
        if let segment = catalog?.segment, segment > last {
            note(segment: segment, .missing)
            (segments, isComplete, last) = ([], false, segment)
        }
        if known == nil {
            // The state says which events belong to removed tenants. Without it such an event could be sent to a new
            // tenant with the same name.
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

    private mutating func note(segment: Int64, _ flaw: FileFlaw?) {
        files.append(
            ExaminedFile(
                FileLog.path(of: segment), subject: "events from \(segment) on", flaw: flaw, lossIfDamaged: Self.loss))
    }

    private mutating func readState(_ view: StoreView, isRequired: Bool) -> LogState? {
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
        files.append(
            ExaminedFile(
                FileLog.statePath, subject: "the bound up to which events were trimmed", flaw: flaw,
                lossIfDamaged: "all events; listeners are told that they missed events"))
        return state
    }

    private mutating func segmentNames(_ view: StoreView) -> [Int64] {
        var segments: [Int64] = []
        do throws(FileFlaw) {
            for name in try view.names(in: FileLog.directoryName) {
                let path = "\(FileLog.directoryName)/\(name)"
                if path == FileLog.statePath { continue }
                if let segment = FileLog.segment(at: path) {
                    segments.append(segment)
                } else {
                    files.append(
                        ExaminedFile(
                            path, subject: "an unknown file", flaw: .unknownName,
                            lossIfDamaged: "nothing: no file of events has this name"))
                }
            }
        } catch {
            files.append(
                ExaminedFile(
                    FileLog.directoryName, subject: "the directory of the events", flaw: error,
                    lossIfDamaged: "all events"))
        }
        return segments.sorted()
    }
}
