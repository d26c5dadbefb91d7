/// What went wrong with the Glewlwyd server, for the reader of a failed test. A retry does not help.
package struct GlewlwydFailure: Error, CustomStringConvertible {
    package let description: String

    package init(_ description: String) {
        self.description = "Glewlwyd: " + description
    }
}
