package flows

// What tests of workers wait for.
const (
	SecondLook = secondLook
	QuickLooks = quickLooks
	AwaitLook  = awaitLook
	MaxRest    = maxRest
	RetryMax   = retryMax
)
