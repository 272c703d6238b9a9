package read

import (
	"testing"

	"svcproxy.dev/svcproxy/internal/structtest"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// The keys that the model names are those of files, except for what no file says.
func TestKeysOfModel(t *testing.T) {
	service, endpoint, check := structtest.Filled[source.Service](), structtest.Filled[source.Endpoint](), structtest.Filled[source.HealthCheck]()
	named := map[string]bool{"left to other services": true, "in a cluster": true}
	for _, now := range structtest.Changes[source.Service]() {
		haveKeys(t, serviceFields, service.Differences(now), named)
	}
	for _, now := range structtest.Changes[source.Endpoint]() {
		haveKeys(t, endpointFields, endpoint.Differences(now), nil)
	}
	for _, more := range structtest.Changes[source.Extras]() {
		now := endpoint.With(*more)
		haveKeys(t, endpointFields, endpoint.Differences(&now), map[string]bool{"hints": true})
	}
	for _, now := range structtest.Changes[source.HealthCheck]() {
		haveKeys(t, checkFields, check.Differences(now), map[string]bool{"barred": true})
	}
}

func haveKeys[T any](t *testing.T, fields []decode.Field[T], list []source.Difference, named map[string]bool) {
	t.Helper()
	for _, d := range list {
		if !hasKey(fields, d.Key) && !named[d.Key] {
			t.Errorf("the model has the key %q, and files have not", d.Key)
		}
	}
}
