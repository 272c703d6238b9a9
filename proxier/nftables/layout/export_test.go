package layout

// ExactSizes is up to which number of slots each number has chains of its own.
const ExactSizes = exactSizes

// Expiries are the possible timeouts of affinity.
var Expiries = expiries

// HashedService returns a service of 20 endpoints, of which some are targets.
var HashedService = hashedService
