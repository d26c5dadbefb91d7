internal import CredentialStore
internal import OAuth
internal import Reactor
internal import Renewal

/// A session whose refresh the provider has refused: it ends, or it is held because of a wave.
extension RenewalWriter {
    /// How often a verdict is asked for because another replica has counted meanwhile. After that the session stays as it is, and
    /// its next refresh tells.
    private static let verdicts = 32

    /// Stores that the session has ended, or that it is held. A store that does not answer is asked again until it does, as for
    /// every end of a session: the refusal must not be lost, nor the lease left behind.
    /// - Parameters:
    ///   - answer: how the provider says that the session is over; nil where it does not.
    ///   - isDoubtful: whether the refusal need not be the provider's or the user's will.
    func endOrHold(_ answer: TokenErrorResponse?, isDoubtful: Bool) async -> Result<Renewed, BrokerError> {
        guard let answer, let held = basis.held else { return .success(.overtaken) }
        let errorCode = tenant.configuration.preset.shownCode(of: answer)
        var (beginning, tries, verdicts) = (nil as MonotonicInstant?, 0, 0)
        while verdicts < Self.verdicts {
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
                verdicts += 1
            } catch .conflict {
                verdicts += 1
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
            await giveBack(
                after: BrokerError(
                    .retryableError, "The provider's refusals kept changing. Ask again.", retryAfter: 1)))
    }

    /// The change that gives the lease back, and the event of a refresh that has failed: the refresh token is as it was.
    private func giving(back error: BrokerError) -> (change: VaultChange, event: BrokerEvent) {
        (
            .release(
                CredentialsRecords.recordID(id), version: basis.snapshot.version, holder: holder,
                LeaseRelease(.settled)),
            .refreshFailed(request.eventContext(basis.grant ?? .refreshToken), error, at: renewer.time.now)
        )
    }

    /// Gives the lease back where nothing is stored.
    private func giveBack(after error: BrokerError) async -> BrokerError {
        let giving = giving(back: error)
        do throws(StoreError) {
            try await renewer.records.commit([giving.change], events: [giving.event], of: id)
        } catch {
            // With a conflict, another holder has the lease.
            renewer.records.report(error, id)
            if error != .conflict { renewer.abandoned.noteUnreleased(id) }
        }
        return error
    }

    /// Stores that the set is held, and gives the lease back: the refresh token is as it was.
    /// - Returns: false where the set was changed meanwhile, or the wave is over.
    private func hold(
        _ held: HeldCredentials, in wave: ProviderWave, _ errorCode: String?
    ) async throws(StoreError) -> Bool {
        let holding = try await renewer.waves.changesHolding(
            held, id, in: wave, errorCode: errorCode, request.refreshID)
        let giving = giving(back: Waves.refusal(tenant, errorCode: errorCode))
        do throws(StoreError) {
            try await renewer.records.commit(
                holding.changes + [giving.change], events: holding.events + [giving.event], of: id)
        } catch .conflict {
            // An earlier try may have been carried out although its answer was lost: then the set is held, without a lease.
            return holding.changes.isEmpty
        }
        if !holding.changes.isEmpty { renewer.waves.noteHeld(id, tenant.configuration.preset) }
        return true
    }
}
