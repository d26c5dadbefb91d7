/// A command that works on the service's own files and database, or is the service. The program itself runs it; its row in the
/// catalog has no body.
package enum ServiceCommand: String, Sendable, CaseIterable {
    case serve
    case up
    case migrate
    case checkConfiguration = "config check"
    case generateKey = "keys generate"
    case keyStatus = "keys status"
    case reseal = "keys reseal"
    case retireKey = "keys retire"
    case healthCheck = "healthcheck"
    case pins
    case examineInstallation = "doctor"
    case examineStore = "doctor store"
    case forgetJournal = "journal forget"
    case verifyAudit = "audit verify"
    case exportAudit = "audit export"
    case removeAudit = "audit remove"
    case variables = "help variables"
    case version
}
