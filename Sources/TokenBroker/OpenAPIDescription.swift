import BrokerCore
import CResources

/// openapi.yaml and its page, as they were when this program was built.
package enum OpenAPIDescription {
    package static let bytes: [UInt8] = unsafe Array(
        // The C array is a constant of the program: it has this size and is never freed.
        UnsafeBufferPointer(start: cresources_openapi(), count: cresources_openapi_size()))

    /// The same as HTML, for people: Tests/Support/openapi/page makes it.
    package static let page: [UInt8] = unsafe Array(
        // As above.
        UnsafeBufferPointer(start: cresources_api_page(), count: cresources_api_page_size()))
}
