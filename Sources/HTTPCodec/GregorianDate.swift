/// A day of the proleptic Gregorian calendar. The computation uses eras of 400 years that begin on 1 March, so that the
/// leap day is the last day of a year.
package struct GregorianDate: Equatable, Sendable {
    package let year: Int64
    /// 1...12.
    package let month: Int64
    /// 1...31. A day that the month does not have is not refused. Converted to `daysSince1970` and back, it becomes
    /// another date.
    package let day: Int64

    package init(year: Int64, month: Int64, day: Int64) {
        self.year = year
        self.month = month
        self.day = day
    }

    package init(daysSince1970 days: Int64) {
        let (era, day) = Self.floorDivide(days + 719_468, by: 146_097)
        let yearOfEra = (day - day / 1460 + day / 36_524 - day / 146_096) / 365
        let dayOfYear = day - (365 * yearOfEra + yearOfEra / 4 - yearOfEra / 100)
        let marchMonth = (5 * dayOfYear + 2) / 153
        month = marchMonth < 10 ? marchMonth + 3 : marchMonth - 9
        year = yearOfEra + era * 400 + (month <= 2 ? 1 : 0)
        self.day = dayOfYear - (153 * marchMonth + 2) / 5 + 1
    }

    package var daysSince1970: Int64 {
        let (era, yearOfEra) = Self.floorDivide(month <= 2 ? year - 1 : year, by: 400)
        let dayOfYear = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1
        return era * 146_097 + yearOfEra * 365 + yearOfEra / 4 - yearOfEra / 100 + dayOfYear - 719_468
    }

    /// Division that rounds down, so that times before 1970 need no separate case.
    package static func floorDivide(_ value: Int64, by divisor: Int64) -> (quotient: Int64, remainder: Int64) {
        let (quotient, remainder) = value.quotientAndRemainder(dividingBy: divisor)
        return remainder < 0 ? (quotient - 1, remainder + divisor) : (quotient, remainder)
    }
}
