package file

import (
	"testing"

	"svcproxy.dev/svcproxy/source/read"
)

// A default that does nothing for a service is no warning, with the endpoints of a list too; a key of its own is.
func TestDefaultsOfListedService(t *testing.T) {
	dir := t.TempDir()
	keys := "slow_start = \"30s\"\nmin_up = 2\ntraffic_distribution = \"prefer_same_zone\"\n"
	write(t, dir+"/web.endpoints.json", listOfN(1))
	for text, want := range map[string]int{"[defaults]\n" + keys + serviceFrom("web", fromList): 0, serviceFrom("web", fromList+"\n"+keys): 3} {
		write(t, dir+"/web.toml", text)
		if f := (read.Rules{}).ReadFile(dir + "/web.toml"); len(f.Faults) != want || len(f.Services) != 1 {
			t.Errorf("%s: %d services, %v", text, len(f.Services), f.Faults)
		}
	}
}
