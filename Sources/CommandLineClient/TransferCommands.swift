/// Import and export.
enum TransferCommands {
    static let all = [ImportCommand.specification, ExportCommand.specification]
}
