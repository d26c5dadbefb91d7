/// What every part of a broker works with: its clock, its log and its metrics.
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
