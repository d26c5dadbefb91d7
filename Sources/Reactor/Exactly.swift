/// The object as one of a class that has no subclasses; nil where it is of any other. One comparison, where `as?` makes a
/// call that looks at what the class inherits from.
@inlinable package func exactly<Object: AnyObject>(_ object: AnyObject, _ type: Object.Type) -> Object? {
    unsafe Swift.type(of: object) == type ? unsafeDowncast(object, to: type) : nil
}
