internal import BrokerCore
internal import CResources

/// The text of openapi.yaml, as it was when this program was built.
package enum OpenAPIDescription {
    package static let bytes: [UInt8] = unsafe Array(
        // The C array is a constant of the program: it has this size and is never freed.
        UnsafeBufferPointer(start: cresources_openapi(), count: cresources_openapi_size()))
}
