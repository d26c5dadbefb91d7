internal import CredentialStore
internal import OAuth

extension CredentialsWriter {
    /// What would become of the line now. Stores nothing.
    func examine(_ line: ImportLine) async throws(BrokerError) -> ImportLine.Outcome {
        do throws(StoreError) {
            let current = try await records.reread(line.id, requiringTombstones: false)
            return line.outcome(over: current.record, now: time.now) ?? .imported
        } catch {
            records.report(error, line.id)
            throw BrokerError(error)
        }
    }

    /// Stores the line's set, unless other credentials stay.
    func take(_ line: ImportLine) async throws(BrokerError) -> ImportLine.Outcome {
        do throws(StoreError) {
            return try await store(line, waiting: nil, isRepeated: false)
        } catch .conflict {
            throw Self.tenantIsGone
        } catch {
            records.report(error, line.id)
            throw BrokerError(error)
        }
    }

    /// Stores the line's set, which the provider has just granted, so that its refresh token is nowhere else. A store that does not
    /// take it is asked again until it does.
    /// - Parameter waiting: makes what is known of a set that is not verified yet; nil for a verified one.
    func settle(
        _ line: ImportLine, waiting: ((_ earlier: HeldCredentials?) -> WaitingVerification)?
    ) async throws(BrokerError) -> ImportLine.Outcome {
        var tries = 0
        while true {
            do throws(StoreError) {
                return try await store(line, waiting: waiting, isRepeated: tries > 0)
            } catch .conflict {
                throw Self.tenantIsGone
            } catch {
                tries += 1
                try await records.waitForStore(beforeTry: tries, line.id, after: error)
            }
        }
    }

    private static let tenantIsGone = BrokerError(.notFound, "The tenant was deleted meanwhile.")

    /// - Parameter isRepeated: whether an earlier try may have been carried out although its answer was lost.
    private func store(
        _ line: ImportLine, waiting: ((_ earlier: HeldCredentials?) -> WaitingVerification)?, isRepeated: Bool
    ) async throws(StoreError) -> ImportLine.Outcome {
        var met: ImportLine.Outcome?
        _ = try await overwrite(
            line.id, with: line.held, by: .set, waiting, { _ throws(StoreError) in ([], []) },
            unless: { current in
                met = line.outcome(over: current.record, now: self.time.now)
                if isRepeated, let stored = current.record.granted, stored.refreshToken == line.held.refreshToken,
                    stored.accessToken == line.held.accessToken
                {
                    met = .imported
                }
                return met != nil
            })
        return met ?? .imported
    }
}
