import OAuth

extension AppGrants {
    /// Tells the audit log of a repeated answer with an access token, before it is sent again.
    func tell(ofAnswerFor id: CredentialsID, to client: AppClient) async throws(AppError) {
        do throws(BrokerError) {
            try await audit.tell(of: id, version: nil, to: client)
        } catch {
            throw AppError(error)
        }
    }
}

extension AuditTrail {
    /// Tells of an access token that an app gets.
    func tell(of id: CredentialsID, version: Int64?, to client: AppClient) async throws(BrokerError) {
        try await tell(ofRead: "token.issued", id, version: version, by: "app:\(client.clientID)")
    }
}
