/// Casts `object` to a class that has no subclasses; nil when the object is of another class. This is one comparison of
/// pointers, whereas `as?` calls into the runtime, which searches the superclasses.
@inlinable package func downcastToFinalClass<Object: AnyObject>(_ object: AnyObject, _ type: Object.Type) -> Object? {
    unsafe Swift.type(of: object) == type ? unsafeDowncast(object, to: type) : nil
}
