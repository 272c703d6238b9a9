package bgp

// Best is what nextHops takes for the other family.
var Best = best

// LogTrouble is what is done with the error of each attempt.
func (s *Speaker) LogTrouble(err error) { s.logTrouble(err) }
