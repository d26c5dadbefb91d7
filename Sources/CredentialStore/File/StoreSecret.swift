/// A secret that the embedded store generates at its first start when the configuration has none. It is in a file of
/// its own beside the records (mode 0600). The raw value is the name of the file.
package enum StoreSecret: String, Sendable, CaseIterable {
    case masterKeys = "master.keys"
    case adminKey = "admin.key"
}
