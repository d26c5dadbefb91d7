import CResources

/// The commit that the program was built from.
package enum BuildCommit {
    /// Hexadecimal digits, with `-changed` where files were changed since the commit; `unknown` where Deploy/build did not build it.
    // The C string is a constant of the program.
    package static let text = unsafe String(cString: cresources_commit())
}
