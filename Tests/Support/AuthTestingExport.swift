// The doubles of the product AuthTesting are those of this project's own tests, and so are the tools that know no broker.
@_exported public import AuthTesting
@_exported public import GroundTesting
