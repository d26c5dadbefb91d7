// The doubles of the product AuthTesting are those of this project's own tests.
@_exported public import AuthTesting
