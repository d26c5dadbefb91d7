/// What went wrong with an authorization server of another project, for the reader of a failed test. A retry does not help.
package struct ServerFailure: Error, CustomStringConvertible {
    package let description: String

    package init(_ description: String) {
        self.description = "The authorization server: " + description
    }
}
