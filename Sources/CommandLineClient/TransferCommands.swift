/// Import and export.
enum TransferCommands {
    static let all: [CommandSpecification] = []
}
