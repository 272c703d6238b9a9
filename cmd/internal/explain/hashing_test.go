package explain

import (
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/source"
)

// What hashes is said, and where a client goes if that is of its address alone.
func TestHashing(t *testing.T) {
	for _, tt := range []struct {
		on   source.HashOn
		src  string
		ipvs bool
		want string // in the choice; empty: nothing is said of maglev
	}{
		{source.NotHashed, client, false, ""},
		{source.ClientIPPort, client, false, "scheduler maglev: a hash of the client's address and port chooses, on every host alike"},
		{source.ClientIP, client, false, "scheduler maglev: a hash of the client's address chooses, on every host alike: for 203.0.113.9 it is 192.168.10.11:8080"},
		{source.ClientIP, "203.0.113.13", false, "scheduler maglev: a hash of the client's address chooses, on every host alike: for 203.0.113.13 it is 192.168.10.12:8080"},
		{source.ClientIP, client, true, "scheduler maglev: a hash of the client's address chooses, on every host alike, by the table of IPVS (mh)"},
	} {
		s := service()
		if s.HashOn = tt.on; tt.on != source.NotHashed {
			s.Scheduler = source.Maglev
		}
		w := world(s)
		w.Balancing = ipvs(tt.ipvs)
		var b strings.Builder
		if err := ask(t, w, &fakeHost{sysctls: map[string]string{}}, tt.src, "10.96.0.10:80", "").Write(&b); err != nil {
			t.Fatal(err)
		}
		got := ""
		for line := range strings.Lines(b.String()) {
			if _, said, found := strings.Cut(line, "scheduler maglev"); found {
				got += "scheduler maglev" + strings.TrimSuffix(said, "\n")
			}
		}
		if got != tt.want {
			t.Errorf("%s of %s, ipvs %v\n got: %s\nwant: %s", tt.on, tt.src, tt.ipvs, got, tt.want)
		}
	}
}
