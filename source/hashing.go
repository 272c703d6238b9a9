package source

// Maglev is the scheduler whose every host chooses the same endpoint for a client: its
// endpoints share a table, and a hash of the client says which slot of it is the client's.
const Maglev = "maglev"

// A HashOn says what of a client is hashed, for the scheduler Maglev.
type HashOn uint8

// NotHashed: the scheduler is another one.
const (
	NotHashed HashOn = iota
	ClientIP
	ClientIPPort // every connection of a client gets an endpoint of its own
)

func (h HashOn) String() string {
	return [...]string{"", "client_ip", "client_ip_port"}[h]
}

// hashing finds what does not go together with the scheduler Maglev, or needs it.
func (v *validator) hashing() {
	switch {
	case v.Scheduler != Maglev && v.HashOn != NotHashed:
		v.fault(At("hash_on"), "hash_on is for scheduler maglev", `write scheduler = "maglev", or leave it out`)
	case v.Scheduler == Maglev && v.HashOn == NotHashed:
		v.fault(At("hash_on"), "scheduler maglev hashes nothing", "")
	case v.Scheduler == Maglev && v.Affinity != 0:
		v.fault(At("session_affinity"), "session_affinity is a record of this host, and scheduler maglev chooses as every other host does",
			`leave it out; with hash_on = "client_ip" a client keeps its endpoint`)
	}
}
