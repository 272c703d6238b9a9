package bgp_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// speakerMain is set where tests run speakers in processes of their own.
var speakerMain func()

// GoBGP leaves the goroutine of the queue to a peer behind where the queue is not empty at the end of the session.
func TestMain(m *testing.M) {
	if os.Getenv(speakerEnv) != "" && speakerMain != nil {
		speakerMain()
		return
	}
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/eapache/channels.(*InfiniteChannel).infiniteBuffer"))
}

// speakerEnv has the configuration of a speaker that the test binary is to run.
const speakerEnv = "SVCPROXY_TEST_SPEAKER"
