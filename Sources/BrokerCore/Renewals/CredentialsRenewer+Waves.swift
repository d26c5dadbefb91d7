import CredentialStore
import OAuth
import Reactor

/// A session whose refresh the provider has refused: it ends, or it is held because of a wave.
extension CredentialsRenewer {
    /// How often a verdict is asked for because another replica has counted meanwhile. After that the session stays as it is, and
    /// its next refresh tells.
    private static let verdicts = 32

    /// Stores that the session has ended, or that it is held. A store that does not answer is asked again until it does, as for
    /// every end of a session: the refusal must not be lost, nor the lease left behind.
    /// - Parameter isDoubtful: whether the refusal need not be the provider's or the user's will.
    func endOrHold(_ renewal: Renewal, isDoubtful: Bool, under lease: OwnLease) async -> Result<Renewed, BrokerError> {
        guard case .sessionEnded(let answer) = renewal.answer, let held = renewal.held else {
            return .success(.overtaken)
        }
        let (id, tenant) = (renewal.id, renewal.tenant)
        let errorCode = tenant.configuration.preset.shownCode(of: answer)
        var (awaySince, tries, verdicts) = (nil as MonotonicInstant?, 0, 0)
        while verdicts < Self.verdicts {
            do throws(StoreError) {
                switch try await waves.judge(id, of: tenant, errorCode: errorCode) {
                case .ends(let counting):
                    let result = await publishEnd(
                        renewal, .refused(answer), isDoubtful: isDoubtful, counting: counting, under: lease)
                    if let result { return result }
                case .held(let wave):
                    if try await hold(held, of: renewal, in: wave, errorCode, under: lease) {
                        return .failure(Waves.refusal(tenant, errorCode: errorCode))
                    }
                    let (stored, standing) = try await records.readWithLease(id)
                    if stored.version != renewal.snapshot.version || standing?.holder != lease.holder {
                        await announceOvertaken(renewal, by: lease)
                        return .success(.overtaken)
                    }
                }
                verdicts += 1
            } catch .conflict {
                verdicts += 1
            } catch {
                guard error == .unavailable else { return .failure(BrokerError(error)) }
                (awaySince, tries) = (awaySince ?? time.monotonic, tries + 1)
                answerCallers(id, .failure(BrokerError(error)), awaySince: awaySince)
                do throws(BrokerError) {
                    try await records.waitForStore(beforeTry: tries, id)
                } catch {
                    return .failure(error)
                }
            }
        }
        return .failure(
            await giveBack(
                lease, of: renewal,
                after: BrokerError(
                    .retryableError, "The provider's refusals kept changing. Ask again.", retryAfter: 1)))
    }

    /// The change that gives the lease back, and the event of a refresh that has failed: the refresh token is as it was.
    private func giving(
        back lease: OwnLease, of renewal: Renewal, after error: BrokerError
    ) -> (change: VaultChange, event: BrokerEvent) {
        (
            lease.release(renewal.snapshot.version, LeaseRelease(.settled)),
            .refreshFailed(renewal.eventContext(renewal.grant ?? .refreshToken), error, at: time.now)
        )
    }

    /// Gives the lease back if nothing is stored.
    private func giveBack(_ lease: OwnLease, of renewal: Renewal, after error: BrokerError) async -> BrokerError {
        let giving = giving(back: lease, of: renewal, after: error)
        do throws(StoreError) {
            try await lease.giveBack(by: [[giving.change]], telling: [giving.event], within: nil)
        } catch {
            // With a conflict, another holder has the lease.
            records.report(error, renewal.id)
        }
        return error
    }

    /// Stores that the set is held, and gives the lease back: the refresh token is as it was.
    /// - Returns: false if the set was changed meanwhile, or the wave is over.
    private func hold(
        _ held: HeldCredentials, of renewal: Renewal, in wave: ProviderWave, _ errorCode: String?,
        under lease: OwnLease
    ) async throws(StoreError) -> Bool {
        let (id, tenant) = (renewal.id, renewal.tenant)
        let holding = try await waves.changesHolding(held, id, in: wave, errorCode: errorCode, renewal.refreshID)
        let giving = giving(back: lease, of: renewal, after: Waves.refusal(tenant, errorCode: errorCode))
        do throws(StoreError) {
            try await records.commit(
                holding.changes + [giving.change], events: holding.events + [giving.event], of: id)
        } catch .conflict {
            // An earlier try may have been carried out although its answer was lost: then the set is held, without a lease.
            return holding.changes.isEmpty
        }
        if !holding.changes.isEmpty { waves.noteHeld(id, tenant.configuration.preset) }
        return true
    }
}
