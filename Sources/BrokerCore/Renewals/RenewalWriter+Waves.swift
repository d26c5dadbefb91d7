internal import CredentialStore
internal import OAuth
internal import Reactor
internal import Renewal

/// A session whose refresh the provider has refused: it ends, or it is held because of a wave.
extension RenewalWriter {
    /// How often a verdict is asked for because another replica has counted meanwhile. After that the session stays as it is, and
    /// its next refresh tells.
    private static let verdicts = 32

    /// - Parameters:
    ///   - answer: how the provider says that the session is over; nil where it does not.
    ///   - isDoubtful: whether the refusal need not be the provider's or the user's will.
    func endOrHold(_ answer: TokenErrorResponse?, isDoubtful: Bool) async -> Result<Renewed, BrokerError> {
        guard let answer, let held = basis.held else { return .success(.overtaken) }
        let errorCode = tenant.configuration.preset.shownCode(of: answer)
        var (beginning, tries) = (nil as MonotonicInstant?, 0)
        for _ in 0..<Self.verdicts {
            do throws(StoreError) {
                switch try await renewer.waves.judge(id, of: tenant, errorCode: errorCode) {
                case .ends(let counting):
                    let result = await publishEnd(.refused(answer), isDoubtful: isDoubtful, counting: counting)
                    if let result { return result }
                case .held(let wave):
                    if try await hold(held, in: wave, errorCode) {
                        return .failure(Waves.refusal(tenant, errorCode: errorCode))
                    }
                    let (stored, lease) = try await renewer.records.readWithLease(id)
                    if stored.version != basis.snapshot.version || lease?.holder != holder {
                        await report.announceOvertaken(basis)
                        return .success(.overtaken)
                    }
                }
            } catch .conflict {
                continue
            } catch {
                guard error == .unavailable else { return .failure(BrokerError(error)) }
                let now = renewer.time.monotonic
                let since = beginning ?? now
                (beginning, tries) = (since, tries + 1)
                if since.duration(to: now) >= CredentialsRecords.callersPatience {
                    renewer.answerCallers(id, .failure(BrokerError(error)))
                }
                do throws(BrokerError) {
                    try await renewer.records.waitForStore(beforeTry: tries, id)
                } catch {
                    return .failure(error)
                }
            }
        }
        return .failure(
            BrokerError(.retryableError, "The provider's refusals kept changing. Ask again.", retryAfter: 1))
    }

    /// Stores that the set is held, and gives the lease back: the refresh token is as it was.
    /// - Returns: false where the set was changed meanwhile, or the wave is over.
    private func hold(
        _ held: HeldCredentials, in wave: ProviderWave, _ errorCode: String?
    ) async throws(StoreError) -> Bool {
        let holding = try await renewer.waves.changesHolding(
            held, id, in: wave, errorCode: errorCode, request.refreshID)
        let failed = BrokerEvent.refreshFailed(
            request.eventContext(basis.grant ?? .refreshToken), Waves.refusal(tenant, errorCode: errorCode),
            at: renewer.time.now)
        let release = VaultChange.release(
            CredentialsRecords.recordID(id), version: basis.snapshot.version, holder: holder, LeaseRelease(.settled))
        do throws(StoreError) {
            try await renewer.records.commit(holding.changes + [release], events: holding.events + [failed], of: id)
        } catch .conflict {
            // An earlier try may have been carried out although its answer was lost: then the set is held, without a lease.
            return holding.changes.isEmpty
        }
        if !holding.changes.isEmpty { renewer.waves.noteHeld(id, tenant.configuration.preset) }
        return true
    }
}
