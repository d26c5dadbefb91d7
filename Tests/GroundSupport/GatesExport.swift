// Almost every test that holds something back does it with a gate.
@_exported public import Gates
