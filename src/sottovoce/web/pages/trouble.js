// Why a call gave nothing, whoever was asked.

export class Trouble extends Error {
	/**
	 * The session is over, the page is an old one, nobody answers, another window was first, or a
	 * sentence of who answers.
	 * @param {"over" | "old" | "gone" | "changed" | "said"} kind
	 * @param {Said} what
	 */
	constructor(kind, what) {
		super(kind);
		this.kind = kind;
		this.said = what;
	}
}
