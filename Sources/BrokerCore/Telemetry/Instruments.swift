/// The clock, the log and the metrics that all parts of a broker share.
package struct Instruments: Sendable {
    package let time: any Time
    package let log: Log
    package let metrics: Metrics

    package init(time: any Time, log: Log, metrics: Metrics) {
        self.time = time
        self.log = log
        self.metrics = metrics
    }
}
