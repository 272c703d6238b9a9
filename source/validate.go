package source

// A Problem is what Validate finds wrong with a service.
type Problem struct {
	Path    Path // in the service, by the keys of a service file
	Msg     string
	Hint    string
	Warning bool
}
